# Nightsweep's front door: one YAML sweep in, a report out.
#
#     snakemake --profile profiles/local --configfile config/demo.yaml
#     snakemake figures --profile profiles/local --configfile config/demo.yaml     # from existing tables, no training
#     snakemake points --profile profiles/slurm --configfile config/demo.yaml      # measure only
#     snakemake remedies --profile profiles/local --configfile config/demo.yaml    # and try what the diagnoses advise
#     ... --config preset=smoke                                                   # a preset of the sweep


include: "workflow/Snakefile"


# Snakemake takes no default target from a file that is included.
workflow.default_target = rules.all.rule.name
