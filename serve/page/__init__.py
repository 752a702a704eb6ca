"""What is on the page? Its parts, as the browser gets them: main.js reads the address, VIEWS lists what there is."""
