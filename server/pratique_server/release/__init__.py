"""The release as this process sees it: the manifest of what was loaded, and the record of what it must do."""
