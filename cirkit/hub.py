"""Folders of the Hugging Face hub: the local cache first, the network only where it answers at once."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import get_session

from cirkit.weight_files import weight_files

_SECONDS = 5.0  # after which the network counts as absent
_TEXTS = ("config.json", "vocab.txt", "tokenizer.json")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form owner/name."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def cached_folder(repo: str) -> Path | None:
    """The folder of ``repo`` in the local cache; None unless its config and all its weights are there."""
    # not by snapshot_download, which wants all files of the repository, not those alone that are needed here
    config = try_to_load_from_cache(repo, "config.json", cache_dir=constants.HF_HUB_CACHE)
    folder = Path(config).parent if isinstance(config, str) else None
    return folder if folder is not None and weight_files(folder) else None


def online() -> bool:
    """Whether the hub answers within a few seconds; False too where HF_HUB_OFFLINE says not to ask."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            answer = get_session().head(constants.ENDPOINT, timeout=_SECONDS)
            answers.append(answer.status_code < 400)
        except Exception:  # of whatever client this version of the hub's package uses
            return

    if constants.HF_HUB_OFFLINE:
        return False
    # a thread, as no timeout ends a name look-up
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_SECONDS + 1)
    return answers == [True]


def hub_folder(repo: str) -> Path:
    """The folder of ``repo``: from the cache, or downloaded into it.

    Raises:
        FileNotFoundError: not in the cache, and the hub cannot be reached or does not have it.
    """
    if folder := cached_folder(repo):
        return folder
    if not online():
        raise FileNotFoundError(
            f"{repo} is not in the Hugging Face cache and the hub cannot be reached from here; run `hf download {repo}`"
            " where there is a network, or give the folder that holds its files"
        )
    try:
        names = HfApi().list_repo_files(repo)
        ending = ".safetensors" if any(name.endswith(".safetensors") for name in names) else ".bin"
        wanted = [name for name in names if name in _TEXTS or name.endswith((ending, f"{ending}.index.json"))]
        return Path(snapshot_download(repo, allow_patterns=wanted))
    except RepositoryNotFoundError:
        raise FileNotFoundError(f"the Hugging Face hub has no {repo}, or does not show it to you") from None
    except Exception as error:  # of whatever client this version of the hub's package uses
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FileNotFoundError(f"{repo} could not be downloaded from the Hugging Face hub ({reason})") from None
