"""The version of this application: what `--version`, meta.json, reports, exports and the installed package say."""

VERSION = "0.9.0"
