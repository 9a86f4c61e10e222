// What `nightsweep compare` prints of two points, from the mean steps of their starts: the formula of
// analysis/diagnosis/comparison.py and analysis/sweep/starts.py, with DATA.compare from analysis/report/start_times.py.
const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;

// A point and the repeats of its settings that nothing disturbed.
function startsOf(point) {
  const { alike, mean_ms: ms } = DATA.compare;
  const repeats = alike.map((group, place) => group === alike[point] && place !== point && ms[place] !== null
    && result("status", place) === "ok" && result("disturbed_reason", place) === null ? place : null);
  return [point, ...repeats.filter((place) => place !== null)];
}
// Half of the interval of the logarithm of one start, from repeats; null where they are too few.
function halfOfRepeats(groups, source) {
  const logs = groups.map((group) => group.map(Math.log));
  const freedom = logs.reduce((sum, group) => sum + group.length - 1, 0);
  if (freedom < DATA.compare.least) return null;
  const squares = logs.flatMap((group) => group.map((each) => (each - mean(group)) ** 2)).reduce((a, b) => a + b, 0);
  return [DATA.compare.quantiles[freedom - 1] * Math.sqrt(squares / freedom), source];
}
// The same of starts on H200s, by host and by what decides how long a step takes.
function knownHalf(a, b) {
  const { active, host, limits, table } = DATA.compare;
  const known = active[a] !== null && active[b] !== null;
  const row = known ? limits.findIndex((limit) => mean([active[a], active[b]]) >= limit) : limits.length + 1;
  return table[row < 0 ? limits.length : row][Number(host[a] !== null && host[a] === host[b])];
}
// Null where one of the two has no timed step.
function compare(a, b) {
  const { alike, mean_ms: ms, steps, samples, noise, host } = DATA.compare;
  if (ms[a] === null || ms[b] === null) return null;
  const perSample = samples[a] && samples[b] && samples[a] !== samples[b];
  let starts = [a, b].map((point) => startsOf(point).map((start) => ms[start] / (perSample ? samples[point] : 1)));
  let found;
  if (alike[a] === alike[b]) {
    found = halfOfRepeats(starts.slice(0, 1), `${starts[0].length} repeats of these settings`);
    starts = starts.map((own) => own.slice(0, 1));
  } else {
    found = halfOfRepeats(starts, `${starts[0].length} and ${starts[1].length} repeats of these settings`);
  }
  const oneEach = [a, b].every((point) => startsOf(point).every((start) => host[start] === host[point]));
  if (oneEach && host[a] !== host[b]) found = null; // repeats on one host do not tell what another one differs by
  const [one, source] = found ?? knownHalf(a, b);
  const half = one * Math.sqrt(1 / starts[0].length + 1 / starts[1].length);
  const [was, is] = starts.map(mean);
  const reach = is < was ? is * Math.expm1(half) : -is * Math.expm1(-half);
  const level = Math.max(noise * was, reach), beyond = Math.abs(is - was) > level;
  return {
    of: perSample ? "sample" : "step", was, is, source, level, noise,
    starts: starts.map((own) => own.length), steps: [steps[a], steps[b]],
    verdict: [a, b].some(endedBadly) ? "not known: a run did not end well"
      : [a, b].some((point) => result("disturbed_reason", point) !== null) ? "not known: something else disturbed a run"
      : !beyond ? "no difference beyond noise" : is < was ? "faster" : "slower",
  };
}
const endedBadly = (point) => ["failed", "cancelled"].includes(result("status", point));
// In the words of the command.
function comparisonLines(a, b) {
  const found = compare(a, b);
  if (!found) return ["There is no timed step to compare in one of the two."];
  const [unit, scale] = found.of === "sample" ? ["us", 1e3] : ["ms", 1];
  const percent = (share, digits) => `${(100 * share).toFixed(digits)}%`;
  const by = (found.is - found.was) / found.was, sign = by < 0 ? "" : "+";
  const lines = [
    `${found.of} A ${(found.was * scale).toFixed(3)} ${unit}, B ${(found.is * scale).toFixed(3)} ${unit}: ${sign}${percent(by, 1)} `
      + `(${found.starts.join(" and ")} starts; ${found.steps.join(" and ")} timed steps in one)`,
    `verdict: ${found.verdict} (noise level ${percent(found.level / found.was, 1)}: 95 %, from ${found.source}; at least ${percent(found.noise, 0)})`,
  ];
  const both = [["A", a], ["B", b]];
  return lines.concat(
    both.filter(([, point]) => endedBadly(point))
      .map(([name, point]) => `${name} did not end well: ${result("reason", point) ?? result("status", point)}`),
    both.filter(([, point]) => result("disturbed_reason", point) !== null)
      .map(([name, point]) => `${name} was disturbed: ${result("disturbed_reason", point)}`));
}
// Settings that differ: (name, of A, of B).
const settingChanges = (a, b) => Object.keys(DATA.settings).map((name) => [name, setting(name, a), setting(name, b)])
  .filter(([, one, other]) => one !== other);
