"""What nobody needs any more leaves the cold store; what anybody needs stays."""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.config import build_config
from millstream.offline.restore import restore
from millstream.offline.verify import verify
from millstream.pipeline.compaction import Rewrite
from millstream.pipeline.job_client import JobClient, JobRefused
from millstream.state.images import decode_image
from millstream.tier.catalog import Catalog
from millstream.tier.catalog_files import load_shards
from millstream.tier.objects import ColdSettings
from tests.cold.backup_world import (
    EAGER,
    QUIET,
    Writer,
    cold_names,
    run_command,
    serving,
)
from tests.cold.impatient import MODULE
from tests.support.server import running_server
from tests.support.waiting import wait_until

SWIFT = (*EAGER, "--catalog-upload-interval", "50ms")
GARBAGE = "/__millstream/garbage"


def names_of(cold: Path) -> set[str]:
    return cold_names(cold, "segments", "snapshots")


def look(writer: Writer) -> Any:
    reply = writer.client.get(GARBAGE)
    assert reply.status == 200, reply
    return reply.json()


def test_deleted_and_trimmed_content_and_superseded_snapshots_free_their_objects(
    tmp_path: Path,
) -> None:
    writer, cold = Writer(), tmp_path / "data" / "cold"
    with serving(writer, tmp_path / "data", *SWIFT, module=MODULE):
        writer.make_bucket()
        writer.create("kept", b"kept;")
        writer.flush("kept")
        kept = names_of(cold)
        writer.create("deleted", b"deleted;")
        writer.flush("deleted")
        writer.create("trimmed", b"trimmed;")
        writer.flush("trimmed")
        writer.snapshot("trimmed", b"one")
        writer.append("trimmed", b"more;")
        writer.flush("trimmed")
        writer.delete("deleted")
        assert len(names_of(cold)) == 5
        writer.snapshot("trimmed", b"two")
        wait_until(lambda: len(names_of(cold)) == 2, "one segment and one snapshot are left")
        assert kept < names_of(cold)
        writer.check_all()
    assert run_command("verify", "--data-dir", str(tmp_path / "data"))[0] == 0


def test_what_a_fork_still_reads_stays_until_the_fork_goes(tmp_path: Path) -> None:
    writer, cold = Writer(), tmp_path / "data" / "cold"
    with serving(writer, tmp_path / "data", *SWIFT, module=MODULE):
        writer.make_bucket()
        writer.create("source", b"inherited;")
        writer.snapshot("source", b"shared")
        writer.append("source", b"behind it;")
        writer.flush("source")
        writer.fork("source", "fork")
        writer.snapshot("source", b"its own")
        held = names_of(cold)
        writer.delete("source")
        writer.create("other", b"something happens;")
        wait_until(lambda: len(names_of(cold)) == len(held) - 1, "the source's snapshot is gone")
        writer.flush("other")
        writer.check_all()
        writer.delete("fork")
        wait_until(lambda: len(names_of(cold)) == 1, "only the other stream is left")
    assert run_command("verify", "--data-dir", str(tmp_path / "data"))[0] == 0


def test_orphans_go_when_they_are_old_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    writer, cold = Writer(), tmp_path / "data" / "cold"
    with serving(writer, tmp_path / "data", *SWIFT, module=MODULE):
        writer.make_bucket()
        writer.create("kept", b"kept;")
        writer.flush("kept")
        writer.snapshot("kept", b"kept")
        writer.append("kept", b"more;")
        writer.flush("kept")
        wait_until(lambda: len(names_of(cold)) == 2, "what was trimmed is gone")
        held = names_of(cold)
        orphans = {
            "segments/0001/1700000000000-0badcafe.parquet",
            "snapshots/2000002-7-0123456789abcdef",
            "snapshots/2-7-0123456789abcdef",
        }
        strangers = {
            "segments/0900/1700000000000-0badcafe.parquet",
            "segments/readme.txt",
            "snapshots/backup-of-mine",
        }
        for name in orphans | strangers:
            (cold / name).parent.mkdir(exist_ok=True)
            (cold / name).write_bytes(b"left over")
        wait_until(lambda: names_of(cold) == held | strangers, "the orphans are gone")
        writer.check_all()


def test_the_command_shows_what_waits_and_collects_what_may_go(tmp_path: Path) -> None:
    """On a server with its usual patience."""
    writer, cold = Writer(), tmp_path / "data" / "cold"
    with serving(writer, tmp_path / "data", *SWIFT) as server:
        writer.make_bucket()
        writer.create("doomed", b"doomed;")
        writer.flush("doomed")
        writer.snapshot("doomed", b"snapshot")
        writer.delete("doomed")
        for number in range(60):  # makes checkpoints happen
            writer.create(f"filler{number}", b"x" * 100)
        wait_until(lambda: look(writer)["waiting"]["objects"] == 2, "both are garbage")
        code, output = run_command("gc", "--dry-run", "--server", server.url)
        assert code == 0, output
        assert re.search(r"segments/\S+\.parquet +no live run left +waits for", output)
        assert re.search(r"snapshots/\S+ +snapshot superseded or deleted +waits for", output)
        assert "would go now: 0 objects, 0 B" in output
        assert "has to wait:  2 objects" in output
        code, output = run_command("gc", "--server", server.url)
        assert (code, output) == (0, "deleted 0 objects, 0 B\n")
        assert len(names_of(cold)) == 2
        assert writer.client.put(GARBAGE).status == 405
    # The grace is over after a restart of the impatient kind.
    with serving(writer, tmp_path / "data", *SWIFT, module=MODULE):
        wait_until(lambda: not names_of(cold), "both are gone")
    code, output = run_command("gc", "--server", "http://127.0.0.1:9")
    assert (code, "is the server running?" in output) == (2, True)


def test_a_server_in_memory_has_no_garbage(tmp_path: Path) -> None:
    with running_server(None, "--log-level", "warning") as server:
        client = server.client()
        assert client.get(GARBAGE).status == 404
        client.close()


# At random


def test_nothing_that_is_referred_to_ever_goes(tmp_path: Path) -> None:
    """Forks, snapshots, deletes, compactions, kills; a restore is possible after each of them."""
    seed = int(os.environ.get("MILLSTREAM_TEST_SEED", random.randrange(2**32)))
    print(f"seed {seed}")
    story = Story(random.Random(seed), tmp_path)
    for round_number in range(8):
        story.play(round_number)
    story.end()


class Story:
    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.data = folder / "data"
        self.cold = folder / "cold"
        self.flags = (*SWIFT, "--cold", f"fs:{self.cold}")
        self.folder = folder
        self.writer = Writer()
        self.born = 0
        self.compactions = 0

    def play(self, round_number: int) -> None:
        with serving(self.writer, self.data, *self.flags, module=MODULE) as server:
            if round_number == 0:
                self.writer.make_bucket()
            self.writer.check_all()
            for _ in range(self.chance.randint(30, 80)):
                self.step(server.url)
            if self.chance.random() < 0.75:
                server.kill()
        self.check(self.data)
        new = self.folder / f"restored{round_number}"
        if list((self.cold / "catalog").glob("manifest-*.json")):
            restore(self.config(new), lambda *_: None)
            self.check(new)

    def config(self, folder: Path) -> Any:
        return build_config({"data_dir": str(folder), "cold": f"fs:{self.cold}"}, {})

    def check(self, folder: Path) -> None:
        found = verify(self.config(folder), 10, lambda *_: None)
        assert found.differences == []

    def step(self, url: str) -> None:
        steps: list[tuple[int, Callable[[str], None]]] = [
            (6, self.append),
            (6, lambda name: self.writer.flush(name)),
            (2, lambda name: self.writer.fork(name, self.new_name())),
            (3, lambda name: self.writer.snapshot(name, self.chance.randbytes(20))),
            (2, lambda name: self.writer.delete(name)),
            (1, lambda name: self.compact(url)),
        ]
        names = list(self.writer.streams)
        if len(names) < 3 or self.chance.random() < 0.15:
            self.writer.create(self.new_name(), self.chance.randbytes(30))
            return
        [(_, step)] = self.chance.choices(steps, [weight for weight, _ in steps])
        step(self.chance.choice(names))

    def new_name(self) -> str:
        self.born += 1
        return f"s{self.born}"

    def append(self, name: str) -> None:
        self.writer.append(name, self.chance.randbytes(self.chance.randint(1, 300)))

    def compact(self, url: str) -> None:
        """As the pipeline does it, and sometimes it is killed before it commits."""
        client = JobClient(url)
        offer = client.ask("compact")
        if offer is None:
            return
        rewrite = Rewrite(url, offer, ColdSettings(f"fs:{self.cold}"))
        for number in range(offer.tasks):
            rewrite._rewrite(number)
        if self.chance.random() < 0.7:
            with contextlib.suppress(JobRefused):  # its lease ran out, or the store is busy
                client.commit(offer.job)
                self.compactions += 1
        elif self.chance.random() < 0.5:
            client.give_up(offer.job)

    def end(self) -> None:
        """Once nothing happens any more, exactly what is referred to is left."""
        with serving(self.writer, self.data, *self.flags, module=MODULE):
            self.writer.check_all()
            wait_until(lambda: names_of(self.cold) == self.referred(), "all garbage is gone")
            self.writer.check_all()
        self.check(self.data)
        print(f"{self.born} streams, {self.compactions} compactions")

    def referred(self) -> set[str]:
        """What the catalog refers to; beside the server, which reads and writes it too."""
        folder = self.data / "catalog"
        store_id = (self.cold / "millstream.json").read_text().split('"')[-2]
        catalog = Catalog.open(folder, load_shards(folder / "root.sqlite"), store_id)
        try:
            found = {use.segment.name for use in catalog.segments()}
            images = [decode_image(row.image) for row in catalog.stream_rows()]
        finally:
            catalog.close()
        return found | {f"snapshots/{i.snapshot[2]}" for i in images if i.snapshot is not None}


def test_a_job_that_takes_its_time_keeps_what_it_uploaded(tmp_path: Path) -> None:
    writer, cold = Writer(), tmp_path / "cold"
    flags = (*SWIFT, "--shards", "1", "--cold", f"fs:{cold}")
    with serving(writer, tmp_path / "data", *flags, module=MODULE) as server:
        writer.make_bucket()
        writer.create("log")
        for number in range(9):
            writer.append("log", b"piece %d;" % number)
            writer.flush("log")
        client = JobClient(server.url)
        while (offer := client.ask("compact")) is None:
            time.sleep(0.05)  # until a checkpoint has told the catalog of them all
        before = names_of(cold)
        Rewrite(server.url, offer, ColdSettings(f"fs:{cold}"))._rewrite(0)
        [new] = names_of(cold) - before
        writer.create("filler")
        for _ in range(20):  # the store is listed again and again meanwhile
            writer.append("filler", b"x" * 500)
        wait_until(lambda: look(writer)["ready"]["objects"] == 0, "nothing may go")
        client.commit(offer.job)
        wait_until(lambda: names_of(cold) == {new}, "only the new segment is left")
        writer.check_all()


def test_a_store_that_is_away_keeps_nobody_from_stopping(tmp_path: Path) -> None:
    """Nobody answers at this address; appends and the stop go on without it."""
    away = (
        *("--cold", "s3://nobody/here", "--cold-endpoint", "http://127.0.0.1:9"),
        *("--cold-access-key-id", "a", "--cold-secret-access-key", "b", "--cold-timeout", "1s"),
    )
    writer = Writer()
    with serving(writer, tmp_path / "data", *QUIET, *away):
        writer.make_bucket()
        writer.create("log", b"appended;")
    with serving(writer, tmp_path / "data", *QUIET, *away):
        writer.check_all()
