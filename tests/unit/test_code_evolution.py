"""The example workload: what it counts is what is there, and a second attempt ends where a single one would have."""

from __future__ import annotations

import asyncio
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tenure.demo import code_evolution as example
from tenure.demo import git_history
from tenure.demo.code_evolution import Evolution, Summary, code_evolution, jobs, picture, resume
from tenure.demo.evolution_chart import Picture, draw
from tenure.demo.git_history import (
    Commit,
    MainLine,
    Mirror,
    RepositoryRefused,
    RepositoryUnreachable,
    open_mirror,
    repository_name,
)
from tenure.errors import JobFailed

ADA, GRACE = "Ada <ada@example.org>", "Grace <grace@example.org>"
HOUR = 3600


class Repo:
    """A working copy that commits one hour after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1_600_000_000
        path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *args: str, author: str = ADA) -> str:
        name, _, email = author.removesuffix(">").partition(" <")
        said = {"NAME": name, "EMAIL": email, "DATE": f"{self.now} +0000"}
        who = {f"GIT_{role}_{what}": text for role in ("AUTHOR", "COMMITTER") for what, text in said.items()}
        quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(["git", "-C", self.path, *args], env=os.environ | who | quiet, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(self, message: str = "change", *, author: str = ADA, **files: str | bytes | None) -> str:
        """Commit these contents; None deletes, and `a__py` is the file `a.py`."""
        for name, content in files.items():
            self.put(name.replace("__", "."), content)
        return self.save(message, author)

    def put(self, name: str | bytes, content: str | bytes | None) -> None:
        path = os.path.join(os.fsencode(self.path), os.fsencode(name))  # noqa: PTH118 (pathlib has no bytes)
        if content is None:
            os.unlink(path)  # noqa: PTH108
            return
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(content if isinstance(content, bytes) else content.encode())

    def save(self, message: str, author: str = ADA) -> str:
        self.now += HOUR
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", message, author=author)
        return self.git("rev-parse", "HEAD")

    def save_raw(self, author: bytes, message: bytes, at: int | None = None) -> None:
        """Commit the index as git itself would refuse to."""
        self.now += HOUR
        self.git("add", "-A")
        tree, parent = self.git("write-tree").encode(), self.git("rev-parse", "HEAD").encode()
        who = author + b" %d +0000" % (at or self.now)
        raw = self.path.with_name("raw")
        raw.write_bytes(b"tree %s\nparent %s\nauthor %s\ncommitter %s\n\n%s" % (tree, parent, who, who, message))
        self.git("reset", "-q", self.git("hash-object", "-t", "commit", "-w", "--literally", str(raw)))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "project")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def mirror(repo: Repo | str, cache: Path) -> Mirror:
    return asyncio.run(open_mirror(str(repo.path) if isinstance(repo, Repo) else repo, cache))


def read(mirror: Mirror, line: MainLine) -> list[Commit]:
    async def collect() -> list[Commit]:
        return [commit async for commit in mirror.walk(line.shas)]

    return asyncio.run(collect())


def total(commits: Sequence[Commit]) -> Evolution:
    evolution = Evolution()
    for commit in commits:
        evolution.add(commit)
    return evolution


def without_zeros(lines: dict[str, int]) -> dict[str, int]:
    return {language: count for language, count in lines.items() if count}


def rich_history(repo: Repo) -> None:
    """Authors, languages, a rename, a merge, a binary file, odd names, an empty commit, a last line with no newline."""
    repo.commit("first", a__py="1\n2\n3\n", readme__md="# hi")
    repo.commit("a style", author=GRACE, b__css="x\n" * 5, logo__png=b"\x89PNG\0\1\2")
    repo.git("mv", "a.py", "a\twith tab.ts")
    repo.save("rename\x1b[31m <&>", "Zoë \u202e <z@example.org>")
    repo.git("checkout", "-q", "-b", "side")
    repo.commit("on the side", author=GRACE, c__go="go\n" * 7)
    repo.commit("on the side again", author=GRACE, c__go="go\n" * 9)
    repo.git("checkout", "-q", "main")
    repo.commit("meanwhile", b__css="x\n" * 2)
    repo.now += HOUR
    repo.git("merge", "-q", "--no-ff", "-m", "merge side", "side")
    repo.put(b"caf\xe9 \n.py", "latin\n")
    repo.save_raw(b" <nameless@example.org>", b"")
    repo.save("nothing at all")


# ── counting ──


def test_the_running_sum_is_what_a_fresh_count_of_the_tree_finds(repo: Repo, cache: Path) -> None:
    rich_history(repo)

    copy = mirror(repo, cache)
    line = asyncio.run(copy.main_line())
    evolution = total(read(copy, line))
    tree = asyncio.run(copy.tree(line.shas[-1]))

    assert (
        without_zeros(evolution.lines) == tree.lines == {"TypeScript": 3, "Markup": 1, "CSS": 2, "Go": 9, "Python": 1}
    )
    assert tree.files == 6
    assert (evolution.commits, evolution.added, evolution.deleted) == (7, 22, 6)


def test_commits_come_oldest_first_with_the_words_of_their_authors(repo: Repo, cache: Path) -> None:
    rich_history(repo)

    copy = mirror(repo, cache)
    commits = read(copy, asyncio.run(copy.main_line()))

    assert [commit.subject for commit in commits] == [
        "first", "a style", "rename\x1b[31m <&>", "meanwhile", "merge side", "", "nothing at all"
    ]  # fmt: skip
    assert commits[4].net == {"Go": 9}
    assert [commit.at for commit in commits] == sorted(commit.at for commit in commits)


def test_authors_of_merged_commits_count_and_nameless_ones_are_known_by_their_address(repo: Repo, cache: Path) -> None:
    rich_history(repo)

    copy = mirror(repo, cache)
    census = asyncio.run(copy.census(asyncio.run(copy.main_line())))

    assert census.commits == 9
    assert census.authors == {"Ada": 4, "Grace": 3, "Zoë \u202e": 1, "nameless@example.org": 1}
    assert sum(census.days.values()) == 9


def test_an_author_that_is_not_utf_8_is_shown_with_replacements(repo: Repo, cache: Path) -> None:
    repo.commit("first", a__py="1\n")
    repo.save_raw(b"J\xf6rg <j@x>", b"b\xe4\n", at=99_999_999_999_999)

    copy = mirror(repo, cache)
    line = asyncio.run(copy.main_line())

    assert asyncio.run(copy.census(line)).authors == {"Ada": 1, "J�rg": 1}
    assert [commit.subject for commit in read(copy, line)] == ["first", "b�"]


def test_only_the_newest_commits_start_from_the_lines_that_were_there(repo: Repo, cache: Path) -> None:
    shas = [repo.commit(f"{n}", a__py="x\n" * n) for n in range(1, 6)]

    line = asyncio.run(mirror(repo, cache).main_line(newest=2))
    everything = asyncio.run(mirror(repo, cache).main_line(newest=5))

    assert (line.base, line.shas) == (shas[2], shas[3:])
    assert (everything.base, everything.shas) == (None, shas)


# ── the cache ──


def test_a_second_visit_fetches_what_is_new_and_follows_another_default_branch(repo: Repo, cache: Path) -> None:
    repo.commit("first", a__py="1\n")
    mirror(repo, cache)
    repo.git("branch", "-m", "main", "trunk")
    tip = repo.commit("second", a__py="1\n2\n")

    line = asyncio.run(mirror(repo, cache).main_line())

    assert (line.branch, line.shas[-1], len(line.shas)) == ("trunk", tip, 2)


def test_the_repository_itself_is_never_written_to(repo: Repo, cache: Path) -> None:
    rich_history(repo)
    before = {path: path.stat().st_mtime_ns for path in repo.path.rglob("*")}

    copy = mirror(repo, cache)
    read(copy, asyncio.run(copy.main_line()))
    mirror(repo, cache)

    assert {path: path.stat().st_mtime_ns for path in repo.path.rglob("*")} == before


def test_a_killed_clone_and_a_broken_mirror_harm_nobody(repo: Repo, cache: Path) -> None:
    tip = repo.commit("first", a__py="1\n")
    folder = mirror(repo, cache).folder
    half = folder.with_name(f"{folder.name}.part-killed")
    (half / "objects").mkdir(parents=True)
    (folder / "config").write_text("[core\n")

    again = mirror(repo, cache)

    assert asyncio.run(again.main_line()).shas == [tip]
    assert not half.exists()


def test_two_jobs_that_fetch_the_same_repository_take_turns(repo: Repo, cache: Path) -> None:
    repo.commit("first", a__py="1\n")

    async def together() -> list[Mirror]:
        return list(await asyncio.gather(*(open_mirror(str(repo.path), cache) for _ in range(4))))

    assert len({mirror.folder for mirror in asyncio.run(together())}) == 1


def test_git_variables_of_a_hook_around_us_do_not_point_git_elsewhere(
    repo: Repo, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tip = repo.commit("first", a__py="1\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere"))

    assert asyncio.run(mirror(repo, cache).main_line()).shas == [tip]


# ── what is refused ──


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--upload-pack=touch pwned", "expected the path or URL"),
        ("", "expected the path or URL"),
        ("ext::sh -c 'touch pwned'", "file, git, http, https or ssh"),
        ("fd::7", "file, git, http, https or ssh"),
        ("no/such/folder", "there is no folder"),
    ],
)
def test_what_is_no_repository_is_refused_for_good(cache: Path, given: str, said: str) -> None:
    with pytest.raises(RepositoryRefused, match=said):
        mirror(given, cache)


def test_a_transport_of_another_kind_is_not_allowed(cache: Path) -> None:
    with pytest.raises(RepositoryUnreachable, match="not allowed"):
        mirror("ftp://example.invalid/x", cache)


def test_a_folder_without_a_repository_says_what_git_said(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(RepositoryUnreachable, match=r"expected a git repository at .* but git says: fatal: "):
        mirror(str(tmp_path), cache)
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_a_password_in_an_address_is_not_repeated(cache: Path) -> None:
    with pytest.raises(RepositoryUnreachable) as caught:
        mirror("ftp://ada:hunter2@example.invalid/x", cache)

    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repository_name("https://ada:hunter2@example.invalid")


def test_an_empty_repository_is_refused_for_good(repo: Repo, cache: Path) -> None:
    with pytest.raises(RepositoryRefused, match="it has none yet"):
        asyncio.run(mirror(repo, cache).main_line())


@pytest.mark.parametrize("branch", ["nope", "--all", "main..side", "HEAD"])
def test_a_branch_that_is_not_there_is_refused_with_those_that_are(repo: Repo, cache: Path, branch: str) -> None:
    repo.commit("first", a__py="1\n")
    repo.git("branch", "side")

    with pytest.raises(RepositoryRefused, match="one of: main, side"):
        asyncio.run(mirror(repo, cache).main_line(branch))


def test_without_git_it_says_what_to_install(
    repo: Repo, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(RepositoryUnreachable, match="install it"):
        mirror(repo, cache)


# ── going on after a crash ──


def test_going_on_from_any_checkpoint_ends_where_a_straight_run_ends(
    repo: Repo, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "MOST_POINTS", 4)
    rich_history(repo)
    copy = mirror(repo, cache)
    line = asyncio.run(copy.main_line())
    commits = {commit.sha: commit for commit in read(copy, line)}
    straight = total(list(commits.values()))

    for done in range(1, len(line.shas) + 1):
        stored = msgspec.json.encode(total([commits[sha] for sha in line.shas[:done]]))
        evolution, todo, note = resume(msgspec.json.decode(stored, type=Evolution), line)
        for sha in todo:
            evolution.add(commits[sha])

        assert (evolution, note) == (straight, "")


def test_a_rewritten_history_is_begun_afresh_and_that_is_said() -> None:
    evolution, todo, note = resume(Evolution(position="f" * 40, commits=9), MainLine("main", ["a" * 40]))

    assert (evolution, todo) == (Evolution(), ["a" * 40])
    assert note == "commit fffffffff of the checkpoint is no longer in main: started over"


def test_a_checkpoint_stays_small_however_long_the_history_is() -> None:
    evolution = total([Commit(f"{n:040}", n, "", 1, 0, {f"L{n % 12}": 1}) for n in range(20_000)])

    assert len(evolution.points) <= example.MOST_POINTS
    assert len(msgspec.json.encode(evolution)) < 64 * 1024


# ── the picture ──


def elements(svg: str) -> Iterator[ET.Element]:
    return ET.fromstring(svg).iter()


@pytest.mark.parametrize("commits", [1, 2, 10_000])
def test_the_picture_is_well_formed_for_any_number_of_commits(commits: int) -> None:
    times = [1_500_000_000 + n * 5000 for n in range(commits)][:: max(commits // 400, 1)]
    series = {"Python": [n + 1 for n in range(len(times))], "<&>\x00": [7] * len(times), "Gone": [0] * len(times)}
    svg = draw(
        Picture(title="a <b> & c\x1b", subtitle="", times=times, series=series, days={17361: 4}, authors={"A": 4})
    )

    drawn = list(elements(svg))
    areas = [element for element in drawn if element.get("class", "").startswith("area")]
    words = {element.text for element in drawn}

    assert len(areas) == 2
    assert "nan" not in svg
    assert "a <b> & c�" in words
    assert len(svg) < 100_000


def test_the_picture_has_a_dark_side() -> None:
    svg = draw(Picture(title="t", subtitle="s", times=[0], series={}, days={}, authors={}))

    assert "@media(prefers-color-scheme:dark)" in svg


def test_small_languages_share_the_last_band() -> None:
    series = {f"L{n}": [100 - n] for n in range(20)}
    svg = draw(Picture(title="t", subtitle="s", times=[0], series=series, days={}, authors={}))

    names = [element.text for element in elements(svg) if element.get("class") == "name"]

    assert names == ["Other", "L6", "L5", "L4", "L3", "L2", "L1", "L0", "Total"]


def test_a_clock_that_was_wrong_does_not_turn_the_picture_back() -> None:
    evolution = total([Commit(f"{n}", at, "", 1, 0, {"C": 1}) for n, at in enumerate([100, 900, 50, 300])])
    census = git_history.Census()
    for at in (100, 300):
        census.add(at, "Ada")

    assert list(picture("x", evolution, census).times) == [100, 300, 300, 300, 300]


# ── as a task ──


def test_the_task_returns_a_summary_and_leaves_a_picture(repo: Repo, cache: Path, tmp_path: Path) -> None:
    rich_history(repo)
    out = tmp_path / "pictures" / "{name}.svg"

    summary = code_evolution.call(str(repo.path), str(out), cache=str(cache))

    assert isinstance(summary, Summary)
    assert (summary.repository, summary.branch, summary.commits, summary.main_line) == ("project", "main", 9, 7)
    assert list(summary.top_authors) == ["Ada", "Grace", "Zoë \u202e", "nameless@example.org"]
    assert summary.picture == str(tmp_path / "pictures" / "project.svg")
    assert next(elements(Path(summary.picture).read_text(encoding="utf-8"))).tag.endswith("svg")


def test_a_job_of_it_is_stored_run_and_its_result_read_back(repo: Repo, cache: Path, tmp_path: Path) -> None:
    repo.commit("first", a__py="1\n2\n")

    with jobs.testing() as queue:
        handle = code_evolution.enqueue(str(repo.path), str(tmp_path / "x.svg"), cache=str(cache), max_commits=1)
        queue.drain()
        summary = handle.result("0s")

    assert (summary.lines, summary.resumed_from, summary.note) == ({"Python": 2}, 0, "")


def test_a_shallow_clone_is_analysed_and_said_to_be_one(
    repo: Repo, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, last = repo.commit("first", a__py="1\n"), repo.commit("last", a__py="1\n2\n")
    repo.git("clone", "-q", "--depth=1", f"file://{repo.path}", str(tmp_path / "shallow"))

    summary = code_evolution.call(str(tmp_path / "shallow"), str(tmp_path / "x.svg"), cache=str(cache))

    assert (summary.main_line, first != last) == (1, True)
    assert f"a shallow clone: commits before {last[:9]} are missing" in summary.note
    assert summary.note in caplog.text


def test_a_repository_without_commits_is_a_dead_letter_at_once(repo: Repo, cache: Path, tmp_path: Path) -> None:
    with jobs.testing() as queue:
        handle = code_evolution.enqueue(str(repo.path), str(tmp_path / "x.svg"), cache=str(cache))
        with pytest.raises(RepositoryRefused):
            queue.drain()

        with pytest.raises(JobFailed, match="it has none yet"):
            handle.result("0s")


@pytest.mark.parametrize(("every", "broken_after", "resumed_from"), [(2, 5, 4), (7, 7, 7), (5, 4, 0)])
def test_a_second_attempt_goes_on_from_the_checkpoint_of_the_first(
    repo: Repo,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    broken_after: int,
    resumed_from: int,
) -> None:
    monkeypatch.setattr(example, "CHECKPOINT_EVERY", every)
    rich_history(repo)
    straight = code_evolution.call(str(repo.path), str(tmp_path / "x.svg"), cache=str(cache))
    walk, left = Mirror.walk, broken_after

    async def break_once(self: Mirror, shas: list[str]) -> AsyncGenerator[Commit]:
        nonlocal left
        async with aclosing(walk(self, shas)) as commits:
            async for commit in commits:
                yield commit
                left -= 1
                if left == 0:
                    raise OSError("the disk went away")

    monkeypatch.setattr(Mirror, "walk", break_once)
    with jobs.testing() as queue:
        handle = code_evolution.enqueue(str(repo.path), str(tmp_path / "x.svg"), cache=str(cache))
        queue.drain(failures="retry")
        queue.advance("1m")
        queue.drain()

        assert handle.result("0s") == replace(straight, resumed_from=resumed_from)
