"""docs/results.md from the files of bench/results/: a section a study, of those that have been measured.

Called by readme_tables.py.
"""
import statistics

import results
import run_budget_speed
import run_corpora
import run_drift
import run_recipes
from results import markdown, number

WINDOW = "4 sinks + 64 recent"  # the default protection, as depth-study names it


def recipes_table(measured):
    table = []
    for model in dict.fromkeys(row["model"] for row in measured["rows"]):
        rows = [row for row in measured["rows"] if row["model"] == model]
        for row in sorted(rows, key=lambda r: r["bytes_per_token_per_head"]):
            table.append([model, run_recipes.name_of(row), f"{row['bytes_per_token_per_head']:.1f}", number(row["kld_mean"]),
                          number(row["kld_p99"]), f"{100 * row['top1']:.1f}%", f"{row['ppl']:.2f}",
                          "simulated" if row["simulated"] else "packed"])
    return markdown(["model", "recipe", "B a token a head", "KLD mean", "KLD 99%", "same top token", "PPL",
                             "cache"], table)


def aligned_against_paper(measured):
    """For each row of `paper`, the `aligned` row of most bytes that stores no more."""
    parts = []
    for model in dict.fromkeys(row["model"] for row in measured["rows"]):
        rows = [row for row in measured["rows"] if row["model"] == model]
        pairs = []
        for paper in (row for row in rows if row["recipe"] == "paper"):
            fit = [row for row in rows if row["recipe"] == "aligned" and
                   row["bytes_per_token_per_head"] <= paper["bytes_per_token_per_head"]]
            if fit:
                best = max(fit, key=lambda row: row["bytes_per_token_per_head"])
                pairs.append(f"{number(best['kld_mean'])} at {best['bytes_per_token_per_head']:.1f} B against "
                             f"{number(paper['kld_mean'])} at {paper['bytes_per_token_per_head']:.1f}")
        parts.append(f"{model} {', '.join(pairs)}")
    return "; ".join(parts)


def recipes_section(measured):
    return f"""\
## Recipes side by side
WikiText-2 test, the first window of 768 tokens, every position, strict, the same protection for all (4 sinks and 64 to 128 recent tokens exact), float activations, rotations from seed {measured['seed']}; ordered by stored bytes (K + V, norms, scales and zero points included; an fp16 cache has 256 at head dim 64, 512 at 128). PPL with an fp16 cache: {", ".join(f"{m} {ppl:.2f}" for m, ppl in {r["model"]: r["ppl_fp16"] for r in measured["rows"]}.items())}. Recipes without a packed kernel are simulated. `pmkvq` without a length has full memory from the start, "in N tokens" narrows as N tokens fill it (bytes of full memory); its widths are from query energy, not from gradients; `kivi` has its groups of 32 but here the common window instead of its own residual of 128. `bench/run_recipes.py`

{recipes_table(measured)}

Mean KLD of `aligned` against `paper` at no more stored bytes: {aligned_against_paper(measured)}.
"""


def wins_text(of_model, equal_bytes):
    """In how many layers `paper` and `aligned` have a lower MAE than `uniform`."""
    parts = []
    for recipe in ("paper", "aligned"):
        won = [w for w in of_model["wins"] if (w["recipe"], w["against"], w["equal_bytes"]) == (recipe, "uniform", equal_bytes)]
        parts.append(f"`{recipe}` " + ", ".join(f"{w['mae']} of {w['layers']} (K{w['k_bits']:g} against K{w['against_k_bits']:g})"
                                                for w in won))
    return "; ".join(parts)


def diagnose_table(of_model, equal_bytes):
    rows = [row for row in of_model["rows"] if row["equal_bytes"] == equal_bytes]
    return markdown(["keys", "B a key", "RoPE-logit MAE", "softmax KL", "top-10 overlap", "cache"],
                    [[f"{r['recipe']} K{r['k_bits']:g}", f"{r['k_bytes_per_token_per_head']:.1f}", number(r["mae_mean"]),
                      number(r["kl_mean"]), f"{100 * r['overlap_mean']:.1f}%", "simulated" if r["simulated"] else "packed"]
                     for r in sorted(rows, key=lambda r: r["k_bytes_per_token_per_head"])])


def diagnose_section(measured):
    text = """\
## Keys alone
The paper's panel ([method](method.md#judging-keys-alone)): calibrated on WikiText-2 train, scored on WikiText-2 test, 2,048 tokens each, keys decoded, values exact, no protected tokens; means over layers. `paper`'s groups are padded to 16 dims in packed records, so at equal code bits it stores up to twice what `uniform` does. `bench/run_studies.py diagnose`
"""
    for model in measured["models"]:
        text += f"""
### {model["model"]}
Layers with a lower MAE than `uniform` at equal code bits: {wins_text(model, False)}.

{diagnose_table(model, False)}

Each at the lowest budget that stores at least the bytes of `aligned` at the widths above; layers with a lower MAE than `uniform`: {wins_text(model, True)}.

{diagnose_table(model, True)}

![Softmax KL against stored bytes](images/diagnose-{model["model"]}-kl.svg)
![Widths of aligned by layer](images/diagnose-{model["model"]}-fingerprint-aligned-K3.svg)
![Widths of paper by layer](images/diagnose-{model["model"]}-fingerprint-paper-K3.svg)
"""
    return text


def where(model):
    """What a study ran on, where it is not a CPU with the model's usual file."""
    parts = [part for part in (model.get("gpu"), model.get("weights")) if part]
    return f"On {', '.join(parts)}. " if parts else ""


def depth_table(model):
    rows, depths = model["rows"], model["depths"]
    table = []
    for name, protection in dict.fromkeys((r["cache"], r["protection"]) for r in rows):
        own = {r["depth"]: r for r in rows if (r["cache"], r["protection"]) == (name, protection)}
        cells = [f"{own[d]['kld_mean']:.4f} / {100 * own[d]['top1']:.0f}%" +
                 (f" / {own[d]['attention_error']:.3f}" if "attention_error" in own[d] else "") for d in depths]
        table.append([name, protection, f"{own[depths[0]]['bytes_per_token_per_head']:.1f}", *cells])
    return markdown(["cache", "exact tokens", "B a token a head", *(f"{d:,}" for d in depths)], table)


def protection_text(model):
    """What the default window leaves of the divergence without a buffer, at the first depth past it and the last."""
    kld = {(r["cache"], r["protection"], r["depth"]): r["kld_mean"] for r in model["rows"]}
    depths = [model["depths"][0], model["depths"][-1]]
    parts = []
    for cache in dict.fromkeys(r["cache"] for r in model["rows"]):
        shares = [kld[cache, WINDOW, d] / kld[cache, "no buffer", d] for d in depths if (cache, WINDOW, d) in kld]
        if shares:
            parts.append(f"{cache} " + " and ".join(f"{100 * share:.0f}%" for share in shares))
    return (f"Of the divergence without a buffer the window leaves, at {depths[0]:,} and {depths[1]:,} tokens: "
            f"{'; '.join(parts)}.") if parts else ""


def depth_section(measured):
    text = """\
## By depth
Mean KL divergence to the fp16 cache / same top token / relative error of attention's outputs on the fp16 run's inputs (mean over layers), over the positions before each depth ([method](method.md#judging-by-depth)). WikiText-2 test, strict. `bench/run_studies.py depth`
"""
    for model in measured["models"]:
        widest = max(row["kld_se"] / row["kld_mean"] for row in model["rows"] if row["kld_mean"] > 1e-6)
        text += f"""
### {model["model"]}
{where(model)}{model["span"]} positions of {model["texts"]} text{"s" if model["texts"] > 1 else ""} at each depth, so a KLD has a standard error of up to {100 * widest:.0f}% of itself; all caches see the same positions. {protection_text(model)}

{depth_table(model)}

![KL divergence by depth](images/depth-{model["model"]}-kld-by-depth.svg)
"""
        if "attention_error" in model["rows"][0]:
            text += f"![Error of attention's outputs by layer](images/depth-{model['model']}-attention-by-layer.svg)\n"
    return text


def calibration_table(measured):
    def cell(group, key, digits, scale=1):
        spread = f" +/- {scale * group[key]['sd']:.{digits}f}" if group["plans"] > 1 else ""
        return f"{scale * group[key]['mean']:.{digits}f}{spread}"

    table = []
    for g in measured["groups"]:
        table.append([f"K{g['k_bits']:g}V{g['v_bits']:g}", f"{g['factor']} {g['value']}".strip(), g["plans"], cell(g, "ppl", 2),
                      cell(g, "kld_mean", 4), cell(g, "top1", 1, 100) + "%", cell(g, "needle", 1)])
    return markdown(["bits", "calibrated on", "plans", "PPL", "KLD", "same top token", "needle"], table)


def calibration_section(measured):
    needle, name = measured["needle"], measured["model_name"]
    protection = "no protected tokens" if measured["recent"] == measured["sinks"] == 0 else (
        f"{measured['sinks']} sinks and {measured['recent']} recent tokens exact")
    samples = len(needle["tasks"]) * len(needle["lengths"]) * len(needle["depths"]) * needle["trials"]
    return f"""\
## What calibration changes
{name}, `{measured['recipe']}`, {protection}, strict; mean +/- standard deviation over plans made of every combination of text, offset and length ([method](method.md#how-much-calibration-matters)). PPL and KLD over the second halves of {measured['windows']} windows of {measured['window']} of WikiText-2 test; needle: {samples} samples a plan ({", ".join(needle['tasks'])}; prompts of {", ".join(map(str, needle['lengths']))} tokens), so one answer moves a plan's score by {100 / samples:.0f} points. fp16 cache: PPL {measured['fp16']['ppl']:.2f}, needle {measured['fp16']['needle']:.1f}. `code` is blockgtq's own source; needles are hidden in the novel. `bench/run_studies.py calibration`

{calibration_table(measured)}

![KL divergence by tokens calibrated on](images/calibration-{name}-kld-by-tokens.svg)
"""


def needle_section(measured):
    text = """\
## Needles
Mean score over the tasks named ([tasks](tasks.md#needle)), percent, by tokens of the prompt. `bench/run_studies.py needle`
"""
    for model in measured["models"]:
        lengths = list(model["rows"][0]["by_length"])
        table = [[r["cache"], f"{r['bytes_per_token_per_head']:.1f}", *(f"{r['by_length'][n]:.1f}" for n in lengths),
                  f"{r['average']:.1f}", f"{r['average_ci_low']:.1f} to {r['average_ci_high']:.1f}"] for r in model["rows"]]
        text += f"""
### {model["model"]}
{where(model)}{model["rows"][0]["samples"]} samples a cache ({model["tasks"].replace(",", ", ")}), {model["rows"][0]["mode"]}.

{markdown(["cache", "B a token a head", *lengths, "all", "95% interval"], table)}
"""
    return text


LONG_RUNS = """\
## Longer runs
For an idle machine; with `--work` a run continues where it was stopped. Then `bench/readme_tables.py` makes this page again.
```
bench/run_recipes.py --models smollm2-135m,qwen2.5-coder-0.5b,qwen2.5-coder-1.5b
bench/run_studies.py diagnose --models smollm2-135m,qwen2.5-coder-0.5b,qwen2.5-coder-1.5b
bench/run_studies.py depth --models smollm2-135m --depths 256,1024,4096,8192 --texts 4 --work studies
bench/run_studies.py depth --models qwen2.5-coder-0.5b,qwen2.5-coder-1.5b --depths 256,1024,4096,16384 --texts 4 --work studies
bench/run_studies.py calibration --lengths 128,256,512,1024,2048 --offsets 0,10000,20000 --seeds 2,3 --work studies
bench/run_studies.py needle --models qwen2.5-coder-0.5b,qwen2.5-coder-1.5b --work studies
```
On a GPU (`--device cuda`) `depth` takes `aligned` alone (`--runs aligned`: the fp16 norms of `uniform` and `paper` are not for GPUs, and simulated recipes attend on the host there), and `needle` takes `--caches` of fp16 and `aligned`. `bench/run_gpu_evidence.py` runs both, and a budget's calibration, within a time limit, and merges what the studies give.
"""

def budget_table(measured):
    rows = measured["rows"]
    table = []
    for row in rows:
        if row["cache"] == "flat":
            continue
        flat = next((r for r in rows if r["cache"] == "flat" and
                     all(r[k] == row[k] for k in ("part", "model", "text", "asked"))), None)
        promised = row["promised_kld"]
        table.append([row["model"], "4 sinks + 64 recent" if row["part"] == "window" else "no buffer", row["asked"], row["text"],
                      f"{row['bytes_per_token_per_head']:.2f}", number(flat["kld_mean"]) if flat else "",
                      number(row["kld_mean"]), f"{100 * (row['kld_mean'] / flat['kld_mean'] - 1):+.0f}%" if flat else "",
                      number(promised) if promised is not None else ""])
    return markdown(["model", "exact tokens", "bytes of, or asked", "text", "bytes", "flat KLD", "budget KLD", "change", "promised"],
                    table)


def probed_text(measured):
    return (f"({measured['probe_tokens']} tokens, {measured['probe_positions']} positions, plans checked on "
            f"{measured['check_tokens']} more)")


def budget_text(measured, kind):
    times = "; ".join(f"{p['plan'].split('.', 1)[1].removesuffix('.budget.safetensors')} {p['seconds']:.0f} s"
                      for p in measured["plans"] if "budget" in p)
    note = f", {measured['note']}" if "note" in measured else ""
    return f"""{where(measured)}Calibrated and probed {probed_text(measured)} on {kind}; calibrations took {times}{note}. Against the flat plan of the same bytes, geometric mean over texts: {changes(measured)}. `{measured['command']}`

{budget_table(measured)}
"""


def budget_section(measured):
    mixed = results.load("budget_mixed.json")
    return f"""\
## One budget over all heads
`calibrate --budget-bytes` with the stored bytes of flat `aligned` plans, and `--target-kld` ([method](method.md#one-budget-over-all-heads)): mean KL divergence to the fp16 cache, strict, every position of {measured['windows']} windows of {measured['window']} tokens, float activations, seed {measured['seed']}; scored on a novel, on source code and on WikiText-2 test. "Promised" is the divergence that calibration measured on further text of its own.

{budget_text(measured, "WikiText-2 train")}
{budget_text(mixed, "prose and code in turn") if mixed else ""}{budget_times()}"""


def changes(measured):
    """What a budget is worth by model and bits: the geometric mean of its divergence over the flat plan's."""
    flat = {(r["model"], r["asked"], r["text"]): r["kld_mean"] for r in measured["rows"] if r["cache"] == "flat"}
    ratios = {}
    for r in measured["rows"]:
        if r["cache"] == "budget" and r["part"] == "budgets":
            ratios.setdefault(f"{r['model']} {r['asked']}", []).append(
                r["kld_mean"] / flat[r["model"], r["asked"], r["text"]])
    return "; ".join(f"{name} {100 * (statistics.geometric_mean(each) - 1):+.0f}%" for name, each in ratios.items())


def budget_times():
    """Of whole calibrations with a budget (budget_time.json)."""
    measured = results.load("budget_time.json")
    return "" if measured is None else "\nTime of a calibration with a budget: " + "; ".join(
        f"{r['model']}, {r['probes']} probes, {r['device']} and {r['cores']} cores: {r['seconds']:.1f} s"
        for r in measured["rows"]) + ".\n"


def predicted_section(measured):
    table = []
    for model in measured["models"]:
        for bits, layers in model["layers"].items():
            ratios = [layer["logit_rms"] / layer["predicted_logit_rms"] for layer in layers]
            table.append([model["model"], f"K{bits}", len(ratios), f"{statistics.geometric_mean(ratios):.2f}",
                          f"{min(ratios):.2f} to {max(ratios):.2f}"])
    pictures = "\n".join(f"![Logit errors by layer, predicted and measured](images/diagnose-{model['model']}-predicted.svg)"
                         for model in measured["models"])
    return f"""\
## Predicted logit errors
Root mean square of the error of RoPE logits, a layer at a time: what the error law predicts from the statistics of WikiText-2 train ([method](method.md#other-position-encodings), nearest rounding), and what `aligned` (searched rounding) measures on {measured['models'][0]['tokens']:,} tokens of WikiText-2 test. `bench/run_studies.py predicted`

{markdown(["model", "keys", "layers", "measured / predicted", "over layers"], table)}

{pictures}
"""


def corpora_section(measured):
    scored = {row["scored"] for model in measured["models"] for row in model["rows"]}
    scored_code = "; scored code is blockgtq's lower layers" if "code" in scored else ""
    return f"""\
## What a plan is calibrated on
Mean KL divergence to the fp16 cache of plans from texts of three kinds and three lengths, strict, no buffer, the second halves of {measured['models'][0]['chunks']} windows of 512 tokens, seed 2; means over {len({row['offset'] for row in measured['models'][0]['rows']})} places of each text. Prose is WikiText-2 train, code blockgtq's server and command line, mixed both in turn{scored_code}. Plans from one text at different places differ by about 7% ([standard deviation](#what-calibration-changes)). `bench/run_corpora.py`

{chr(10).join(where(model) + chr(10) * 2 * bool(where(model)) + run_corpora.table(model) + chr(10) for model in measured['models'])}"""


def drift_section(measured):
    ratios = [row["kld_adapted"] / row["kld_default"] for model in measured["models"] for row in model["rows"]]
    return f"""\
## Drift
The default plan (WikiText-2) against one adapted to running moments ([method](method.md#drift)) of {measured['models'][0]['tokens']:,} tokens or less of each kind of text: mean KL divergence to the fp16 cache on later text of the kind, strict, no buffer, {measured['models'][0]['chunks']} windows of 512 tokens, seeds {', '.join(map(str, sorted({row['seed'] for model in measured['models'] for row in model['rows']})))}. `bench/run_drift.py`

{chr(10).join(where(model) + chr(10) * 2 * bool(where(model)) + run_drift.table(model) + chr(10) for model in measured['models'])}
Over all rows the adapted plan's divergence is {statistics.geometric_mean(ratios):.2f} times the default's (geometric mean; {min(ratios):.2f} to {max(ratios):.2f}). Plans from other stretches of one text differ by about 7% ([standard deviation](#what-calibration-changes)): smaller changes say nothing. Drift is about the square of keys' logit errors, one part of what makes up a divergence, and moments of few tokens fit themselves better than later text.
"""


def plan_speed_section(measured):
    return f"""\
## What plans cost in time
CPU time of one thread: a decoded token and a prompt with equal bits, then with a budget spent over all heads at the same bytes; a token of `generate` without, then with `--moments`. Medians, and the ratios of rounds whose sides ran one after the other (load before: {measured['models'][0]['machine']['load_average_before']:.0f} on {measured['models'][0]['machine']['cores']} cores). `bench/run_budget_speed.py`

{chr(10).join(run_budget_speed.table(model) + chr(10) for model in measured['models'])}"""


SECTIONS = {"recipes.json": recipes_section, "budget.json": budget_section, "diagnose.json": diagnose_section, "depth.json": depth_section,
            "calibration.json": calibration_section, "corpora.json": corpora_section, "drift.json": drift_section,
            "predicted.json": predicted_section, "budget_speed.json": plan_speed_section, "needle.json": needle_section}


def write():
    text = ("# Results\nMade by `bench/readme_tables.py` from `bench/results/`, whose files name machine, commit and "
            "command. The README has the panels of the packed recipes and the speed.\n")
    for name, section in SECTIONS.items():
        measured = results.load(name)
        if measured is not None:
            text += "\n" + section(measured)
    (results.ROOT / "docs/results.md").write_text(text + "\n" + LONG_RUNS)
