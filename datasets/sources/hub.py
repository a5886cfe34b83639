"""A set of images on Hugging Face's hub, by its name: the parquet that the hub keeps of every set."""

import re
import shutil
from pathlib import Path

from common.errors import DataError, import_optional
from common.files import MARK, hidden, require_writable_data_root, settle
from common.shell import EXTRAS
from common.text import shorten_list
from datasets.config import HUB_PREFIX

REVISION = "refs/convert/parquet"
"""Revision to which the hub itself writes each set anew: a folder for each subset, in it one for each split."""


def obtain_from_hub(source: str, root: Path) -> Path:
    """Return the folder of `hf:ORG/NAME`, or of `hf:ORG/NAME/SUBSET`, below `root`/hub, downloaded if it is missing.

    A download that broke off continues. Raises DataError: no such name, or several subsets. MissingPackage: no
    huggingface_hub. FileNotFoundError: it cannot be downloaded; the line says what to fetch.
    """
    if not (match := re.fullmatch(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:/(\w[\w.-]*))?", source)):
        raise DataError(f"{source!r} names no set of the hub; expected hf:ORG/NAME or hf:ORG/NAME/SUBSET")
    name, subset = match.groups()
    folder = root / "hub" / source.removeprefix(HUB_PREFIX).replace("/", "--")
    if folder.is_dir():
        return folder
    require_writable_data_root(folder)
    hint = f"{source} needs huggingface_hub: {EXTRAS}"
    hub = import_optional("huggingface_hub", hint)
    aside = hidden(folder, f".{MARK}")  # with one name for all starts: a download that broke off goes on
    try:
        found = hub.dataset_info(name, revision=REVISION, timeout=20)  # asked once; the library tries others for 24 s
        names = [file.rfilename for file in found.siblings or ()]
        files = [file for file in names if re.fullmatch(r"\w[\w.-]*/.+\.parquet", file)]
        subsets = sorted({file.partition("/")[0] for file in files})
        subset = subset or (subsets[0] if len(subsets) == 1 else "")
        if subset not in subsets:
            raise DataError(
                f"{source}: name one of its subsets, hf:{name}/SUBSET; it has {shorten_list(subsets) or 'none'}"
            )
        wanted = [file for file in files if file.startswith(f"{subset}/")]
        hub.snapshot_download(name, repo_type="dataset", revision=REVISION, allow_patterns=wanted, local_dir=aside)
        if not all((aside / file).is_file() for file in wanted):  # the library gives back what it has
            raise ConnectionError("the connection broke")
    except DataError:
        raise
    except Exception as error:  # of the hub's library, of its HTTP client, of the system
        page = f"https://huggingface.co/datasets/{name}/tree/{REVISION.replace('/', '%2F')}"
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileNotFoundError(
            f"{source} cannot be downloaded ({reason}): fetch the folder of a subset from {page} and put it at {folder}"
        ) from error
    settle(aside / subset, folder)
    shutil.rmtree(aside, ignore_errors=True)
    return folder
