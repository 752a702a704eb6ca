"""Watch your runs on a page, and talk to your models."""
