"""Upload recorded results to an object store.

The action plugin ``rackproof_bench_upload`` calls :func:`upload_results`. A failed upload changes no
verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rackproof.core.records import Record
from rackproof.core.text import amount
from rackproof.jobs.bench.planning import PLAN_FILE
from rackproof.store.object_store import Bucket, ObjectStore, ObjectStoreError
from rackproof.store.run_folder import RECORD_NAME


class UploadOutcome(Record):
    """The result of an upload.

    ``whole`` is false if the upload ended early. ``files`` is the number of files of the uploaded folders in
    the store, and ``new`` is the number of files among them that were sent.
    """

    whole: bool
    message: str
    files: int = 0
    new: int = 0


def upload_results(
    results: Path,
    names: Sequence[str],
    *,
    source: str,
    url: str,
    region: str,
    credentials: Sequence[Mapping[str, Any]],
) -> UploadOutcome:
    """Upload folders of results to an object store. Objects that are already there are not sent again.

    Args:
        results: The results folder.
        names: Names of the folders to upload. Empty means all folders with a run or a plan.
        source: The bucket as ``BUCKET`` or ``BUCKET:/PREFIX``.
        url: URL of the store. Empty means AWS.
        region: The region of the store.
        credentials: The keys, in the form of ``storage_s3fs_credentials``.
    """
    files = new = 0
    folders = [results / name for name in names] or _folders_of(results)
    try:
        store = ObjectStore(Bucket.parse(source, url, region, credentials))
        for folder in folders:
            held_files, new_files = store.upload_folder(folder)
            files, new = files + held_files, new + new_files
    except ObjectStoreError as error:
        return UploadOutcome(
            whole=False, message=f"results: not all in the object store: {error}", files=files, new=new
        )
    return UploadOutcome(
        whole=True,
        message=f"results: {amount(files, 'file')} in {store.bucket}, {new} of them new",
        files=files,
        new=new,
    )


def _folders_of(results: Path) -> list[Path]:
    """Return the folders of runs and plans in a results folder."""
    kinds = (RECORD_NAME, PLAN_FILE)
    return sorted({path.parent for kind in kinds for path in results.glob(f"[!.]*/{kind}")})
