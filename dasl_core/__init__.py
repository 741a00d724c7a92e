"""Self-supervised pretraining with DAR and SEC: the library, without service, SQL or Ray.

For your own training loop (docs/library.md has an example):

* `dasl_core.regularizers`: `difference_alignment` (DAR), `SphericalEmbeddingConstraint` (SEC),
  `weight_at` for the weight of a step, `ctv_norm`; `norm_distribution` and `angular_update` to measure.
* `dasl_core.methods`: the losses (`nt_xent`, `byol_loss`, `vicreg_loss`, ...), and the methods by name
  in `REGISTRY`, each a subclass of `Method`.
* `dasl_core.clustering.cluster`: k-means over rows that are distributed over ranks.
* `dasl_core.evaluate`: metrics of features: k-NN, R@K, NMI, linear probe, effective rank, ...
* `dasl_core.distributed`: `gather` and `gather_views`, whose backward sums over ranks.
* `dasl_core.seeds.stream`: random generators by seed, purpose and step.

For a whole run:

* `dasl_core.spec`: `JobSpec`, and `resolve`, which replaces every "auto"; needs no torch.
* `dasl_core.data.ingest_folder`: index a folder of images.
* `dasl_core.train.build.pretrain`: run a training; `python -m dasl_core.standalone` does so from the
  command line, without a service.
* `dasl_core.export`: export a checkpoint's backbone to ONNX, torch.export or Hugging Face's layout.
"""
