"""The error about a wrong configuration: one line names the file, the line, the key and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.config import Settings, effective_settings, load, require_source, require_target
from venus.errors import ConfigError

pytestmark = pytest.mark.usefixtures("no_venus_environment")

ACCESS = '[cluster]\ntier = "access"\nupstream = ["10.0.1.1:7400"]\n'
CLUSTER = '[cluster]\nname = "shop"\nbroker_id = "b1"\netcd = ["10.0.0.1:2379"]\n'


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "venus.toml"
    file.write_text(text)
    return file


def refusal(file: Path | None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_environment_overrides_the_file_option_by_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, '[broker]\ndata_dir = "/a"\nreview_after_s = 2\n[source]\nurl = "sqlite:///x.db"\n')
    monkeypatch.setenv("VENUS_BROKER__DATA_DIR", "/b")
    monkeypatch.setenv("VENUS_SOURCE__TABLES", "orders, app.*")

    settings = load(file)

    assert settings.broker.data_dir == Path("/b")
    assert settings.broker.review_after_s == 2.0
    assert settings.source.tables == ("orders", "app.*")
    assert settings.source.url.get_secret_value() == "sqlite:///x.db"


@pytest.mark.parametrize("name", ["main", "Main", "site-b"])
def test_a_variable_matches_a_target_however_the_file_spells_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, f'[targets.{name}]\nurl = "postgresql://a"\nschema = "s"\n')
    monkeypatch.setenv(f"VENUS_TARGETS__{name.upper().replace('-', '_')}__URL", "postgresql://b")

    settings = load(file)

    assert list(settings.targets) == [name]
    assert settings.targets[name].url.get_secret_value() == "postgresql://b"
    assert settings.targets[name].schema_ == "s"


def test_a_target_may_be_defined_by_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_TARGETS__B__URL", "postgresql://b")

    assert load(None).targets["b"].url.get_secret_value() == "postgresql://b"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('[targets.main]\nuri = "p://x"\n', 2, "targets.main.uri: no such option (did you mean url?) (and 1 more)"),
        ('[brokr]\nlisten = "x:1"\n', 1, "brokr: no such section (did you mean broker?)"),
        (
            "[columns]\nx = 1\n",
            1,
            "no such section (did you mean cluster.columns or source.columns or targets.NAME.columns?)",
        ),
        ('[cluster]\nrebalance = "no way"\n', 2, "cluster.rebalance: 'no way' should be true or false"),
        ('# hi\n[broker]\nlistn = "x:1"\n', 3, "broker.listn: no such option (did you mean listen?)"),
        ("[broker.limits]\nrows_per_s = true\n", 2, "broker.limits.rows_per_s: true should be a number"),
        ("[broker.limits]\nstreams = true\n", 2, "broker.limits.streams: true should be an integer"),
        ("[broker.limits]\nrows_per_s = inf\n", 2, "broker.limits.rows_per_s: inf should be a finite number"),
        ("[broker.limits]\nburst_s = nan\n", 2, "broker.limits.burst_s: nan should be a finite number"),
        ("[broker.limit]\nrows_per_s = 3\n", 1, "broker.limit: no such option (did you mean limits?)"),
        ('[broker]\nreview_after_s = "soon"\n', 2, "broker.review_after_s: 'soon' should be a number"),
        ("[source]\ntables = 5\n", 2, 'source.tables: 5 should be a list of strings, like ["a", "b"]'),
        ('[source]\ntables = ["a", 5]\n', 2, "source.tables.1: 5 should be a string, in quotes"),
        ("[broker]\nlisten = 7400\n", 2, "broker.listen: 7400 should be a string, in quotes"),
        ("[broker]\ndata_dir = 5\n", 2, "broker.data_dir: 5 should be a path, in quotes"),
        ('[broker]\nfree_bytes_min = "1 GB"\n', 2, "broker.free_bytes_min: '1 GB' should be an integer"),
        ("[apply]\nload_workers = 1.5\n", 2, "apply.load_workers: 1.5 should be an integer"),
        ('[business]\nname = ""\n', 2, "business.name: '' must have 1 to 128 printable characters"),
        ('[targets]\nurl = "x"\n', 2, "targets.url: a target has a name: its options go into a section [targets.NAME]"),
        ("[capture]\n\nbatch_rows_max = 0\n", 3, "capture.batch_rows_max: 0 should be greater than 0"),
        ('[broker]\nlisten = "here"\n', 2, "broker.listen: 'here' should be HOST:PORT"),
        ('source = "sqlite:///x"\n', 1, "source: is a section, not a value: write [source]"),
        ('[targets.main]\nschema = "a"\n', 1, "targets.main.url: must be set"),
        ('[targets.main]\nurl = "p://x"\non_error = "stop"\n', 3, "should be 'halt' or 'quarantine'"),
        ('[targets.main]\nurl = "p://x"\nshema = "a"\n', 3, "(did you mean schema?)"),
        (
            '[targets.eu]\nurl = "p://x"\n[targets.eu.where]\norders = "upper(region) = \'EU\'"\n',
            4,
            "targets.eu.where.orders: \"upper(region) = 'EU'\" character 1: upper() is a function",
        ),
        ('[targets.eu]\nurl = "p://x"\nwhere = {orders = 5}\n', 3, "where.orders: 5 should be a string, in quotes"),
        ("broker.listn = 1\n", 1, "broker.listn: no such option"),
        ('[broker]\naddresses = "a:1, b"\n', 2, "broker.addresses.1: 'b' should be HOST:PORT"),
        ('[broker]\naddresses = ["a:1", "b:1", "a:1"]\n', 2, "broker.addresses: names a:1 twice"),
        ('[broker]\naddresses = ["a:1", ""]\n', 2, "broker.addresses: has an empty address"),
        ('[broker]\nfurther = [["a:1"], ["b"]]\n', 2, "broker.further.1.0: 'b' should be HOST:PORT"),
        ('[broker]\nfurther = ["a:1", "b:1"]\naddress = "b:1"\n', 1, "broker: further names b:1, which is in another"),
        ('[broker]\nfurther = [["a:1"], []]\n', 2, "broker.further.1: is a set without a broker"),
        ('[broker]\nfurther = [["a:1"], ["a:1"]]\n', 1, "broker: further names a:1, which is in another set"),
        ('[cluster]\nbrokerid = "b1"\n', 2, "cluster.brokerid: no such option (did you mean broker_id?)"),
        ('[cluster]\nname = "shop"\n', 1, "cluster: broker_id must be set: 1 to 128 printable characters"),
        ("[cluster]\npriority = 3\n", 1, "cluster: name must be set"),
        ("[cluster]\nlevel = 1\n", 1, "cluster: level is 1, and core sets are at level 0"),
        ('[cluster]\nlabels = ["eu"]\n', 1, "cluster: labels are for tandem and access sets"),
        (
            '[cluster]\n[cluster.where.shop]\norders = "a = 1"\n',
            1,
            "cluster: where is for tandem and access sets: a core set has",
        ),
        (
            f'{ACCESS}level = 1\nset = "a"\n[cluster.where.shop]\norders = "region = \'EU\' or x = 1"\n',
            7,
            "cluster.where.shop.orders: \"region = 'EU' or x = 1\" character 15: OR joins two ranges into something",
        ),
        (
            f'{ACCESS}level = 1\nset = "a"\n[cluster.where.shop]\nORDERS = "a = 1"\n"app.orders" = "a = 2"\n',
            6,
            "cluster.where.shop: has two predicates for one table: ORDERS and app.orders",
        ),
        ('[cluster]\nset = " "\n', 1, "cluster: set must have 1 to 128 printable characters"),
        ('[cluster]\ntier = "access"\n', 1, "cluster: level must be set for tier access: 1 is directly below"),
        (
            '[cluster]\ntier = "tandem"\nlevel = 2\n',
            1,
            "cluster: upstream must be set for tier tandem: brokers of level 1",
        ),
        (f"{ACCESS}level = -1\n", 4, "cluster.level: -1 should be greater than or equal to 0"),
        (f"{ACCESS}level = 1\n", 1, "cluster: set must be set for tier access: a name, unlike any other"),
        (f'{ACCESS}level = 1\nset = "a"\nlabels = ["eu", "eu"]\n', 6, "cluster.labels: names eu twice"),
        (
            f'[labels]\neu = ["a"]\n{ACCESS}level = 1\nset = "a"\nlabels = ["eo"]\n',
            3,
            "cluster: label 'eo' is not in [labels] (did you mean eu?): define it there: eo = [",
        ),
        (
            f'{ACCESS}level = 1\nset = "a"\nlabels = ["eu"]\n',
            1,
            "cluster: label 'eu' is not in [labels]: define it there",
        ),
        (
            '[broker]\nlisten = "10.0.1.1:7400"\n[cluster]\nset = "a"\nupstream = ["10.0.1.1:7400"]\n',
            3,
            "cluster: upstream names this broker itself, 10.0.1.1:7400: it lists brokers of the set above",
        ),
        ('[cluster]\nupstream = ["hq"]\n', 2, "cluster.upstream.0: 'hq' should be HOST:PORT"),
        ('[cluster]\nupstream = ["hq:74000"]\n', 2, "'hq:74000' should be HOST:PORT, with a port up to 65535"),
        ('[cluster]\ntier = "tandum"\n', 2, "cluster.tier: 'tandum' should be 'core', 'tandem' or 'access'"),
        ("[broker]\nfurther = 3\n", 2, 'broker.further: 3 should be a list of sets, like [["a:7400", "b:7400"], ["c'),
        ("[labels]\neu = []\n", 2, 'labels.eu: is empty: list tables ("orders", "app.orders") or "business:'),
        ('[labels]\neu = ["business:"]\n', 2, "labels.eu: has 'business:': a business is written business:NAME"),
        ('[labels]\neu = ["Business: crm"]\n', 2, "has 'Business: crm': a business is written business:crm"),
        ('[labels]\neu = ["ord*"]\n', 2, "labels.eu: has 'ord*': a label lists names, and no patterns"),
        ('[labels]\n" eu" = ["a"]\n', 2, "' eu' must have 1 to 128 printable characters"),
        ('[labels]\neu = [""]\n', 2, "labels.eu: must have 1 to 128 printable characters"),
        ("[labels]\neu = 5\n", 2, "labels.eu: 5 should be a list of strings"),
        ('[cluster]\nname = "shop"\nbroker_id = "b1"\n', 1, "cluster: etcd must be set: a list of addresses"),
        ('[cluster]\nname = "shop"\nbroker_id = "b1"\netcd = ["here"]\n', 4, "'here' should be HOST:PORT"),
        (f"{CLUSTER}replicas = 3\nmin_in_sync = 4\n", 1, "cluster: min_in_sync is 4, and there are 3 replicas"),
        (f"{CLUSTER}replicas = 0\n", 5, "cluster.replicas: 0 should be greater than or equal to 1"),
        (f'{CLUSTER}policy = "both"\n', 5, "cluster.policy: 'both' should be 'consistency' or 'availability'"),
        ("[alarms.rules.table_halt]\n", 1, "alarms.rules.table_halt: 'table_halt' is not a kind of alarm (did"),
        ('[alarms.to.me]\nrules = ["replicas*"]\n', 2, "alarms.to.me.rules: has 'replicas*', which is not a kind"),
        ("[alarms.to.me]\n", 1, "alarms.to.me: one of webhook (or webhook_file), mail and command must be set"),
        ('[alarms.to.me]\nmail = ["a@b.c"]\n', 1, "alarms.to.me: mail needs smtp, the server as HOST:PORT"),
        ('[alarms.to.me]\nwebhook = "planted"\nwebhook_file = "f"\n', 1, "webhook and webhook_file are both set"),
        ('[alarms.to.me]\nwebhok = "a"\n', 2, "alarms.to.me.webhok: no such option (did you mean webhook?)"),
        ('[alarms]\nme = "a"\n', 2, "alarms.me: no such option"),
        (f"{CLUSTER}lease_s = 1\n", 5, "cluster.lease_s: 1 should be greater than or equal to 2"),
    ],
)
def test_a_wrong_option_is_named_with_its_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)

    message = refusal(file)

    assert message.startswith(f"{file}:{line}: ")
    assert says in message


@pytest.mark.parametrize(
    ("text", "reach"),
    [
        ("", "127.0.0.1:7400"),
        ('listen = "0.0.0.0:1"\n', "0.0.0.0:1"),
        ('address = "a:1"\n', "a:1"),
        ('address = "a:1"\naddresses = ["b:2", "[::1]:3"]\n', "b:2,[::1]:3"),
        ('addresses = "b:2, c:3"\n', "b:2,c:3"),
        ('addresses = ["a:1", "b:1"]\nfurther = [["c:1", "d:1"], ["e:1"]]\n', "a:1,b:1;c:1,d:1;e:1"),
        ('address = "a:1"\nfurther = "c:1, d:1; e:1"\n', "a:1;c:1,d:1;e:1"),
    ],
)
def test_the_brokers_address_is_found(text: str, reach: str, tmp_path: Path) -> None:
    assert load(write(tmp_path, f"[broker]\n{text}")).broker.reach == reach


def test_a_cluster_of_three_needs_two_of_them(tmp_path: Path) -> None:
    found = load(write(tmp_path, CLUSTER)).cluster

    assert (found.replicas, found.min_in_sync_effective, found.policy) == (3, 2, "consistency")
    assert load(write(tmp_path, CLUSTER + "replicas = 5\n")).cluster.min_in_sync_effective == 3
    assert load(write(tmp_path, CLUSTER + "min_in_sync = 1\n")).cluster.min_in_sync_effective == 1
    assert load(None).cluster.name == ""


def test_a_single_broker_may_be_in_a_network_without_etcd(tmp_path: Path) -> None:
    text = f'[labels]\nEU = ["orders", "business:crm"]\n{ACCESS}level = 2\nsite = "paris"\nlabels = ["EU"]\n'
    found = load(write(tmp_path, text))

    assert (found.cluster.name, found.cluster.set_name, found.cluster.is_mirror) == ("", "paris", True)
    assert found.labels == {"EU": ("orders", "business:crm")}


@pytest.mark.parametrize("site", ["x" * 129, " paris", "paris "])
def test_a_site_is_a_name(tmp_path: Path, site: str) -> None:
    """Otherwise clients would refuse every answer of a broker with another value."""
    with pytest.raises(ConfigError, match=r"site must have 1 to 128 printable characters, no space outside"):
        load(write(tmp_path, f'{CLUSTER}set = "a"\nsite = "{site}"\n'))


def test_a_replicated_set_may_be_in_a_network_too(tmp_path: Path) -> None:
    found = load(write(tmp_path, CLUSTER + 'tier = "tandem"\nlevel = 1\nupstream = ["10.0.1.1:7400"]\n')).cluster

    assert (found.set_name, found.tier, found.is_mirror) == ("shop", "tandem", True)
    assert (load(None).cluster.set_name, load(None).cluster.is_mirror) == ("core", False)


def test_a_label_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_LABELS__EU", "orders, app.customers")
    monkeypatch.setenv("VENUS_CLUSTER__LABELS", "Eu")

    found = load(write(tmp_path, f'[labels]\nEu = ["orders"]\n{ACCESS}level = 1\nset = "a"\n'))

    assert (found.labels, found.cluster.labels) == ({"Eu": ("orders", "app.customers")}, ("Eu",))


def test_a_cluster_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NAME": "shop", "BROKER_ID": "b2", "ETCD": "10.0.0.1:2379, 10.0.0.2:2379"}.items():
        monkeypatch.setenv(f"VENUS_CLUSTER__{name}", value)

    assert load(None).cluster.etcd == ("10.0.0.1:2379", "10.0.0.2:2379")


@pytest.mark.parametrize(
    ("text", "line"),
    [("[source\n", 1), ('[source]\nurl = "a\n', 2), ("[source]\nurl = \n", 2), ("a = 1\na = 2\n", 2)],
)
def test_bad_toml_is_named_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    file = write(tmp_path, text)

    assert refusal(file).startswith(f"{file}:{line}: not TOML: ")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('[source]\nurl = "a\n[targets.main]\nurl = "b"\n', 2, "the closing quote of this line is missing"),
        ("[source]\nurl = 'a\n[targets.main]\n", 2, "the quote that opens here is never closed"),
        ('[source]\nurl = """a\n[targets.main]\n', 2, "the quote that opens here is never closed"),
        ("[targets.main]\n[apply]\n[targets.main]\n", 3, "section [targets.main] begins a second time here: merge the"),
        ("[source]\nurl = 'a'\nurl = 'b'\n", 3, "this is already set further up: keep one of the two"),
        ("[source]\nurl = sqlite:///a\n", 2, "this is not a TOML value: quote texts"),
        ("[broker]\nlisten '127.0.0.1:1'\n", 2, "write an option as NAME = VALUE"),
        ("[broker\n", 1, "write a section as [NAME]"),
        ('[broker]\ndata_dir = "c:\\dir"\n', 2, "double each backslash, or put the text into single quotes"),
        ("[broker]\nlisten = 'a:1' http = 'a:2'\n", 2, "put each option on a line of its own"),
    ],
)
def test_bad_toml_is_reported_in_the_words_of_the_file(text: str, line: int, says: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)

    assert refusal(file).startswith(f"{file}:{line}: not TOML: {says}")


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        load(tmp_path / "none.toml")

    assert "`venus init SOURCE_URL TARGET_URL` writes one" in caught.value.hint


def test_a_file_that_is_not_text_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "venus.toml"
    file.write_bytes(b"[source]\nurl = \xff\n")

    assert refusal(file) == f"{file}:2: byte 0xff is not UTF-8, which TOML must be"
    assert "directory" in refusal(tmp_path)


def test_an_unreadable_file_is_named_with_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    file = write(tmp_path, "")
    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything
    monkeypatch.setenv("LOGNAME", "shopkeeper")
    with pytest.raises(ConfigError, match="user shopkeeper may not read it") as caught:
        load(file)
    assert caught.value.hint == "let shopkeeper read it, or run as its owner"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("VENUS_BROKR__LISTEN", "x:1", "did you mean VENUS_BROKER__LISTEN?"),
        ("VENUS_BROKER__LISTN", "x:1", "did you mean VENUS_BROKER__LISTEN?"),
        ("VENUS_BROKER", "x", "VENUS_BROKER matches no option"),
        ("VENUS_TARGETS__MAIN__URI", "x", "VENUS_TARGETS__MAIN__URI matches no option"),
        ("VENUS_BROKER__REVIEW_AFTER_S", "soon", "environment: VENUS_BROKER__REVIEW_AFTER_S: 'soon' should be"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)

    assert says in refusal(None)


def test_several_mistakes_are_one_line_with_their_number(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, "[broker]\nlistn = 1\nhtpt = 2\n")).endswith("(and 1 more)")


def test_no_message_repeats_a_url(tmp_path: Path) -> None:
    for text in ('[targets.a]\nurl = ["p://u:hunter2@h/d"]\n', '[source]\nurl = {a = "hunter2"}\n'):
        assert "hunter2" not in refusal(write(tmp_path, text))


def test_the_settings_never_print_a_secret() -> None:
    settings = Settings(
        source={"url": "postgresql://u:hunter2@h/d"},  # type: ignore[arg-type]
        targets={"a": {"url": "postgresql://u:hunter3@h/d?password=hunter4"}},  # type: ignore[dict-item]
    )

    shown = (
        f"{settings!r} {settings} {effective_settings(settings)} {settings.model_dump()} {settings.model_dump_json()}"
    )

    assert "hunter" not in shown
    assert effective_settings(settings)["source"]["url"] == "postgresql://u:***@h/d"


def test_a_missing_source_or_target_is_named() -> None:
    settings = Settings(targets={"berlin": {"url": "postgresql://h/d"}})  # type: ignore[dict-item]

    with pytest.raises(ConfigError, match="no source"):
        require_source(settings)
    with pytest.raises(ConfigError, match=r"'berln' \(did you mean berlin\?\)"):
        require_target(settings, "berln")
    with pytest.raises(ConfigError, match=r"no \[targets.NAME\] section"):
        require_target(Settings(), "main")


@pytest.mark.parametrize("option", ["source.url", "targets.Site-b.url"])
def test_a_variable_set_to_nothing_is_named_and_not_the_file(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"VENUS_{option.upper().replace('.', '__').replace('-', '_')}"
    monkeypatch.setenv(variable, "")
    settings = load(write(tmp_path, '[source]\nurl = "sqlite:///a"\n[targets.Site-b]\nurl = "postgresql://h/d"\n'))

    with pytest.raises(ConfigError) as caught:
        require_source(settings) if option == "source.url" else require_target(settings, "Site-b")

    assert str(caught.value) == f"environment: {variable} is empty, and overrides {option} of the file"
    assert variable in caught.value.hint


def test_a_misspelt_option_of_a_nested_section_is_named(tmp_path: Path) -> None:
    file = tmp_path / "venus.toml"
    file.write_text("[broker.limits]\nrow_per_s = 5\n")
    with pytest.raises(ConfigError, match=r"venus.toml:2: broker.limits.row_per_s: .*did you mean rows_per_s\?"):
        load(file)
    file.write_text("[broker.limits]\nrows_per_s = -5\n")
    with pytest.raises(ConfigError, match=r"venus.toml:2: broker.limits.rows_per_s: -5 should be greater than or"):
        load(file)
    for wrong in ("-1", "nan", '"fast"'):
        file.write_text(f"[broker.limits]\nsmall_commit_ms = {wrong}\n")
        with pytest.raises(ConfigError, match=r"venus.toml:2: broker.limits.small_commit_ms: [^\n]+$"):
            load(file)
    file.write_text("[broker]\nlimits = 3\n")
    with pytest.raises(ConfigError, match=r"venus.toml:2: broker.limits: is a section, not a value: write \[broker"):
        load(file)


def test_a_variable_may_configure_a_recipient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, '[alarms.to.Night-Shift]\nwebhook = "http://a"\ntimeout_s = 3\n')
    monkeypatch.setenv("VENUS_ALARMS__TO__NIGHT_SHIFT__WEBHOOK", "http://planted")

    alarms = load(file).alarms

    assert list(alarms.to) == ["Night-Shift"]
    assert alarms.to["Night-Shift"].webhook.get_secret_value() == "http://planted"
    assert alarms.to["Night-Shift"].timeout_s == 3
    assert "planted" not in str(effective_settings(load(file)))
