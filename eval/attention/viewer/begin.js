// viewer.html alone: the data is in the page.

readData().then(() => start()).catch((error) => {
  byId("loading")?.remove();
  byId("failure").hidden = false;
  byId("failure").textContent = `This page cannot be shown: ${error.message}`;
  throw error;
});
