"""Self-supervised pretraining with DAR and SEC: the library, without service, SQL or Ray.

For a training loop of one's own (docs/library.md has an example):

* `dasl_core.regularizers`: `difference_alignment` (DAR), `SphericalEmbeddingConstraint` (SEC),
  `weight_at` for the weight of a step, `ctv_norm`; `norm_distribution` and `angular_update` to measure.
* `dasl_core.methods`: the losses (`nt_xent`, `byol_loss`, `vicreg_loss`, ...) and the methods, each a
  `Method`, by name in `REGISTRY`.
* `dasl_core.clustering.cluster`: k-means over rows that are distributed over ranks.
* `dasl_core.evaluate`: measures of features: k-NN, R@K, NMI, linear probe, effective rank, ...
* `dasl_core.distributed`: `gather` and `gather_views`, whose backward sums over ranks.
* `dasl_core.seeds.stream`: random generators by seed, purpose and step.

For a whole run:

* `dasl_core.spec`: `JobSpec`, and `resolve`, which settles every "auto"; needs no torch.
* `dasl_core.data.ingest_folder`: a folder of images to an index.
* `dasl_core.train.build.pretrain`: a run; `python -m dasl_core.standalone` runs one without a
  service.
* `dasl_core.export`: what a checkpoint's backbone can become.
"""
