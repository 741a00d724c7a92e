// Which series belong together in one chart.

/**
 * @typedef {{id: string, title: string, match: RegExp}} Rule
 * @typedef {{id: string, title: string, of: "metrics" | "evaluations", names: string[]}} Panel
 */

/** @type {Rule[]} */
const OF_METRICS = [
  { id: "loss", title: "Loss", match: /^(loss.*|patch_loss|prototype_loss)$/ },
  { id: "rank", title: "Effective rank", match: /^embedding_rank$/ },
  { id: "norms", title: "Norms of embeddings", match: /^embedding_norm/ },
  { id: "spread", title: "Spread of embeddings", match: /^embedding_(std|distance.*)$|^koleo$/ },
  { id: "lr", title: "Learning rate", match: /^lr$/ },
  { id: "gradient", title: "Gradient norm", match: /^gradient_norm$/ },
  { id: "update", title: "Angular update", match: /^angular_update$/ },
  { id: "outputs", title: "Entropy of outputs", match: /^output_(entropy|usage)$/ },
  { id: "teacher", title: "Teacher", match: /^teacher_/ },
  { id: "clusters", title: "Clusters", match: /^clusters_(size_.*|empty|reseeded)$/ },
  { id: "cluster-quality", title: "Quality of clusters", match: /^clusters_/ },
  { id: "speed", title: "Images per second", match: /^images_per_second$/ },
  { id: "times", title: "Shares of the time", match: /^time_/ },
  { id: "use", title: "Use of the machine", match: /^(cpu|gpu)_utilization$/ },
  { id: "memory", title: "Memory", match: /^(memory|gpu_memory)$/ },
];

/** @type {Rule[]} */
const OF_EVALUATIONS = [
  { id: "accuracy", title: "k-NN and linear accuracy", match: /^(knn|linear|finetune)_top\d+$/ },
  { id: "recall", title: "Recall at K", match: /^recall_at_\d+$/ },
  { id: "views", title: "R@1 of views", match: /^instance_recall_at_\d+$/ },
  { id: "evaluated-rank", title: "Effective rank, held out", match: /^effective_rank$/ },
  {
    id: "geometry",
    title: "Alignment and uniformity",
    match: /^(alignment|uniformity|dimension_std)$/,
  },
  { id: "pairs", title: "Verification of pairs", match: /^(verification_accuracy|tar_at_far_.+)$/ },
  { id: "clustering", title: "NMI and pairwise F1", match: /^(nmi|pairwise_f1)$/ },
];

/** Counts that say nothing as a curve. */
const CONSTANT = new Set(["num_outputs", "dar_columns"]);

/**
 * The panels for these series, those of what the features are worth first.
 * @param {string[]} metrics
 * @param {string[]} evaluations
 */
export function panelsOf(metrics, evaluations) {
  const left = new Set(metrics.filter((name) => !CONSTANT.has(name)));
  const [loss, ...others] = OF_METRICS.flatMap((panel) => take(panel, "metrics", left));
  // A loss of one term is this term: its line would hide that of the loss.
  if (loss?.names.length === 2 && loss.names[1].startsWith("loss_")) loss.names.pop();
  const measured = new Set(evaluations);
  const accuracies = OF_EVALUATIONS.flatMap((panel) => take(panel, "evaluations", measured));
  const rest = [...left]
    .sort()
    .flatMap((name) =>
      take({ id: name, title: name.replaceAll("_", " "), match: /./ }, "metrics", new Set([name])),
    );
  return [...(loss ? [loss] : []), ...accuracies, ...others, ...rest];
}

/** @param {Rule} rule @param {Panel["of"]} of @param {Set<string>} left @returns {Panel[]} */
function take({ id, title, match }, of, left) {
  const names = [...left].filter((name) => match.test(name)).sort(byLength);
  for (const name of names) left.delete(name);
  return names.length ? [{ id, title, of, names }] : [];
}

/** `loss` before `loss_simclr`, and R@1 before R@10. @param {string} one @param {string} other */
function byLength(one, other) {
  return one.length - other.length || (one < other ? -1 : 1);
}
