# The experiments of docs/reproduction.md: `make reproduce-NAME` trains into runs/NAME and publishes to results/NAME.
#
# Every target continues: what results/NAME or runs/NAME hold is not trained again. Ctrl-C or `timeout` saves, and
# `make publish-NAME` then publishes the draws that are whole. OPTIONS go to every sweep: --device cuda, --workers 8.
# The data is looked for in $DOMAINWISE_DATA. Records of ColoredMNIST, RotatedMNIST and PACS are bf16, those of Digits
# tf32; not every device has these, and OPTIONS may name another precision, for records of their own.
OPTIONS ?=
READY_IF_OURS := $(if $(filter $(BIN)/domainwise,$(DOMAINWISE)),$(READY))

EXPERIMENTS := demo-settings demo-robustness cmnist cmnist-all cmnist-noise backgrounds backgrounds-radius backgrounds-batch backgrounds-averages rotated rotated-all rotated-penalty pacs pacs-search pacs-averages pacs-probes digits theory

.PHONY: $(EXPERIMENTS:%=reproduce-%) $(EXPERIMENTS:%=unpack-%)

$(EXPERIMENTS:%=reproduce-%): reproduce-%: unpack-%

$(EXPERIMENTS:%=unpack-%): unpack-%: $(READY_IF_OURS)
	test ! -e results/$*/runs.jsonl.gz || $(DOMAINWISE) unpack results/$* runs/$*

publish-%: $(READY_IF_OURS)
	$(DOMAINWISE) publish runs/$* results/$*

# The settings of the demo, chosen by training-domain validation with a seed that the demo does not have: the learning
# rate of all methods by ERM, then the radius of UAT and of DAT, which agree, after 300 steps as after 500.
# `make demo publish-demo` publishes the demo itself.
DEMO_SHARED := $(DOMAINWISE) sweep --dataset BackgroundDigits --hparams 1 --device cpu --hparam batch_size=64
DEMO_SETTINGS := $(DEMO_SHARED) --trials 2 --steps 501 --seed 100 --out runs/demo-settings
reproduce-demo-settings:
	$(DEMO_SETTINGS) --algorithms ERM --grid lr=0.001,0.002,0.004 $(OPTIONS)
	$(DEMO_SETTINGS) --algorithms UAT,DAT --hparam lr=0.004 --hparam alpha=0.8 --grid eps=0.5,1,2 $(OPTIONS)
	$(MAKE) publish-demo-settings

# The demo's runs with five seeds, each in both precisions and with one and two threads; tables keep all of them apart.
DEMO_RUNS := $(DEMO_SHARED) --algorithms ERM,UAT,DAT --trials 3 --steps 351 --hparam lr=0.004 --hparam eps=0.5 \
    --hparam alpha=0.8 --out runs/demo-robustness
reproduce-demo-robustness:
	$(DEMO_RUNS) --seed 0 --threads 1 --precision fp32 $(OPTIONS)
	$(DEMO_RUNS) --seed 0 --threads 2 --precision bf16 $(OPTIONS)
	$(DEMO_RUNS) --seed 1 --threads 2 --precision fp32 $(OPTIONS)
	$(DEMO_RUNS) --seed 1 --threads 1 --precision bf16 $(OPTIONS)
	$(DEMO_RUNS) --seed 2 --threads 1 --precision fp32 $(OPTIONS)
	$(DEMO_RUNS) --seed 2 --threads 2 --precision bf16 $(OPTIONS)
	$(DEMO_RUNS) --seed 3 --threads 2 --precision fp32 $(OPTIONS)
	$(DEMO_RUNS) --seed 3 --threads 1 --precision bf16 $(OPTIONS)
	$(DEMO_RUNS) --seed 4 --threads 1 --precision fp32 $(OPTIONS)
	$(DEMO_RUNS) --seed 4 --threads 2 --precision bf16 $(OPTIONS)
	$(MAKE) publish-demo-robustness

# ColoredMNIST: Table 1's column, Table 9, and Ensemble UAT of Table 4; fewer draws of WRM and AT, with eleven passes a
# step. The audit asks every selected model whether it follows colour or digit.
CMNIST := $(DOMAINWISE) reproduce table1 --dataset ColoredMNIST --out runs/cmnist --precision bf16
AUDIT_DEVICE ?= cpu
reproduce-cmnist:
	$(CMNIST) --algorithms ERM,DAT --hparams 8 --trials 3 $(OPTIONS)
	$(CMNIST) --algorithms IRM,VREx,GroupDRO,UAT --hparams 4 --trials 3 $(OPTIONS)
	$(DOMAINWISE) reproduce table4 --dataset ColoredMNIST --algorithms EnsembleUAT --hparams 4 --trials 3 \
	    --out runs/cmnist --precision bf16 $(OPTIONS)
	$(CMNIST) --algorithms ADA --hparams 4 --trials 3 $(OPTIONS)
	$(CMNIST) --algorithms WRM --hparams 2 --trials 3 $(OPTIONS)
	$(CMNIST) --algorithms AT --hparams 1 --trials 3 $(OPTIONS)
	$(MAKE) audit-cmnist publish-cmnist

.PHONY: audit-cmnist
audit-cmnist:
	$(DOMAINWISE) audit runs/cmnist --selected --device $(AUDIT_DEVICE)

# What is learned by heart of ColoredMNIST's wrong labels? All images are judged, those trained on too; a small network
# at the defaults, on a CPU.
reproduce-cmnist-noise:
	$(DOMAINWISE) sweep --dataset ColoredMNIST --network mlp --space paper --algorithms ERM,DAT,AT --hparams 1 --trials 3 \
	    --steps 5001 --evaluate-every 250 --full-curves --device cpu --out runs/cmnist-noise $(OPTIONS)
	$(MAKE) publish-cmnist-noise

# BackgroundDigits, every method at fixed hyper-parameters (these, and defaults): the paper's own and those it
# starts from, all others, the two of eleven passes a step, and ARM, whose second network is much larger than the first.
BACKGROUNDS := $(DOMAINWISE) sweep --dataset BackgroundDigits --hparams 1 --device cpu
FIXED := --hparam batch_size=32 --hparam eps=2 --hparam alpha=0.2
EVERY_METHOD := $(BACKGROUNDS) --trials 5 --out runs/backgrounds
reproduce-backgrounds:
	$(EVERY_METHOD) --algorithms ERM,IRM,VREx,GroupDRO,UAT,DAT,LDAT,EnsembleUAT,ADA $(FIXED) $(OPTIONS)
	$(EVERY_METHOD) --algorithms CORAL,MMD,DANN,CDANN,MTL,Mixup,MLDG,RSC,SagNet --hparam batch_size=32 $(OPTIONS)
	$(EVERY_METHOD) --algorithms AT,WRM $(FIXED) $(OPTIONS)
	$(EVERY_METHOD) --algorithms ARM --hparam batch_size=32 $(OPTIONS)
	$(MAKE) publish-backgrounds

# Radius x step size in l2, and in l_inf (the same length if every pixel moved alike: eps / sqrt(2352)).
reproduce-backgrounds-radius:
	$(BACKGROUNDS) --algorithms ERM --trials 3 --hparam batch_size=32 --out runs/backgrounds-radius $(OPTIONS)
	$(BACKGROUNDS) --algorithms DAT,UAT --trials 3 --hparam batch_size=32 --grid norm=l2 --grid eps=0.5,1,2,4,8 \
	    --grid alpha=0.05,0.2,0.8 --out runs/backgrounds-radius $(OPTIONS)
	$(BACKGROUNDS) --algorithms DAT --trials 3 --hparam batch_size=32 --grid norm=linf --grid eps=0.01,0.04,0.16 \
	    --grid alpha=0.001,0.004,0.016 --out runs/backgrounds-radius $(OPTIONS)
	$(MAKE) publish-backgrounds-radius

reproduce-backgrounds-batch:
	$(BACKGROUNDS) --algorithms ERM --trials 3 --grid batch_size=8,16,32,64 --out runs/backgrounds-batch $(OPTIONS)
	$(BACKGROUNDS) --algorithms DAT --trials 3 --grid batch_size=8,16,32,64 --hparam eps=2 --hparam alpha=0.2 \
	    --out runs/backgrounds-batch $(OPTIONS)
	$(MAKE) publish-backgrounds-batch

# What averaged weights add to a method, at the settings of reproduce-backgrounds.
AVERAGES := $(BACKGROUNDS) --algorithms ERM,DAT,CORAL,MIRO,SAM --trials 3 --hparam batch_size=32 --hparam eps=2 \
    --hparam alpha=0.2 --out runs/backgrounds-averages
reproduce-backgrounds-averages:
	$(AVERAGES) --average sma $(OPTIONS)
	$(AVERAGES) --average swad $(OPTIONS)
	$(MAKE) publish-backgrounds-averages

# RotatedMNIST of the DomainBed table.
reproduce-rotated:
	$(DOMAINWISE) reproduce db --dataset RotatedMNIST --algorithms ERM,IRM,DAT --hparams 1 --trials 3 \
	    --out runs/rotated --precision bf16 $(OPTIONS)
	$(MAKE) publish-rotated

# How much of IRM's gap to ERM is the weight of its penalty? A small network, on a CPU.
PENALTY := $(DOMAINWISE) sweep --dataset RotatedMNIST --network mlp --hparams 1 --trials 3 --steps 2001 --device cpu \
    --out runs/rotated-penalty
reproduce-rotated-penalty:
	$(PENALTY) --algorithms ERM $(OPTIONS)
	$(PENALTY) --algorithms IRM --grid penalty=0.1,1,10,100 $(OPTIONS)
	$(MAKE) publish-rotated-penalty

# Every method at its defaults, in three trials. ColoredMNIST with the protocol's 5,001 steps; RotatedMNIST with a fifth
# of them, after which ERM is 1.6 points below its end in results/rotated. Each line can be published by itself; the
# methods with eleven passes a step come last.
ALL_ROTATED := $(DOMAINWISE) sweep --dataset RotatedMNIST --steps 1001 --hparams 1 --trials 3 --precision bf16 \
    --out runs/rotated-all
ALL_CMNIST := $(DOMAINWISE) sweep --dataset ColoredMNIST --steps 5001 --hparams 1 --trials 3 --precision bf16 \
    --out runs/cmnist-all
define EVERY_METHOD_OF
	$(1) --algorithms ERM,IRM,VREx,GroupDRO,SD,EQRM,RDM,UAT,DAT,LDAT,EnsembleUAT,ADA $(OPTIONS)
	$(1) --algorithms CORAL,MMD,DANN,CDANN,MTL,Mixup,MLDG,RSC,SagNet,ARM $(OPTIONS)
	$(1) --algorithms IB_ERM,IB_IRM,Fishr,Fish,ANDMask,SANDMask,IGA,SelfReg,CAD,CondCAD $(OPTIONS)
	$(1) --algorithms CausIRL_CORAL,CausIRL_MMD,Transfer,TRM,URM,ADRMX,SAM,SAGM,MIRO,ERMPlusPlus $(OPTIONS)
	$(1) --algorithms AT,WRM $(OPTIONS)
endef
reproduce-rotated-all:
	$(call EVERY_METHOD_OF,$(ALL_ROTATED))
	$(MAKE) publish-rotated-all
reproduce-cmnist-all:
	$(call EVERY_METHOD_OF,$(ALL_CMNIST))
	$(MAKE) publish-cmnist-all

# PACS with ImageNet ResNet-50, with fewer steps than the paper's: the defaults, and AT, with eleven passes a step, once.
# PACS_NETWORK=resnet50 for torchvision's weights, whose strides are not the original ones, and records of their own.
PACS_NETWORK ?= resnet50-v1
PACS := $(DOMAINWISE) sweep --dataset PACS --steps 1501 --network $(PACS_NETWORK) --precision bf16
reproduce-pacs:
	$(PACS) --algorithms ERM,DAT,UAT --hparams 1 --trials 3 --out runs/pacs $(OPTIONS)
	$(PACS) --algorithms AT --hparams 1 --trials 1 --out runs/pacs $(OPTIONS)
	$(MAKE) publish-pacs

# A few draws of each by DomainBed's ranges; the first is the defaults again.
reproduce-pacs-search:
	$(PACS) --algorithms ERM,DAT,UAT --hparams 3 --trials 2 --out runs/pacs-search $(OPTIONS)
	$(MAKE) publish-pacs-search

# What averaged weights add to a method on photographs and drawings, at the defaults.
PACS_AVERAGES := $(PACS) --algorithms ERM,DAT,CORAL,MIRO,SAM --hparams 1 --trials 3 --out runs/pacs-averages
reproduce-pacs-averages:
	$(PACS_AVERAGES) --average sma $(OPTIONS)
	$(PACS_AVERAGES) --average swad $(OPTIONS)
	$(MAKE) publish-pacs-averages

# Probes: the features of ResNet-50 once (about six minutes on two cores), and every method trained on them at the
# defaults, but for those that begin after the last of these steps. A linear classifier has no features of its own:
# methods that only change features would be ERM, or IRM (IB_IRM). Perturbations and mixing happen in the features. AT and
# WRM come last, with eleven passes a step. The folder's path is part of the runs: the same everywhere.
PROBED := /tmp/pacs-resnet50-v1
PROBES := $(DOMAINWISE) sweep --dataset $(PROBED) --hparams 1 --trials 3 --device cpu --network linear --out runs/pacs-probes
reproduce-pacs-probes:
	$(DOMAINWISE) features PACS --network resnet50-v1 --device cpu --out $(PROBED)
	$(PROBES) --algorithms ERM,IRM,VREx,GroupDRO,SD,UAT,DAT,LDAT,EnsembleUAT,ADA,MTL,Mixup,MLDG,Fish,ANDMask,SANDMask $(OPTIONS)
	$(PROBES) --algorithms IGA,URM,SAM,SAGM,SelfReg,RSC $(OPTIONS)
	$(PROBES) --algorithms EQRM,RDM,Fishr --hparam anneal=500 $(OPTIONS)
	$(PROBES) --algorithms AT,WRM $(OPTIONS)
	$(MAKE) publish-pacs-probes

# Where models of the defaults look that saw no sketch: on drawings of our own, whose picture may be shown, and on one
# sketch of each class. Models are not published, so that this target trains its three again where runs/ has none.
DRAWINGS = $(or $(sort $(wildcard docs/images/drawings/*.png)),$(error docs/images/drawings holds no drawings))
CAM = $(DOMAINWISE) cam runs/pacs-heatmaps --json
.PHONY: heatmaps-pacs
heatmaps-pacs: $(READY_IF_OURS)
	$(PACS) --algorithms ERM,UAT,DAT --hparams 1 --trials 1 --test-domains sketch --out runs/pacs-heatmaps $(OPTIONS)
	$(CAM) $(DRAWINGS:%=--images %) --out docs/images/pacs-heatmaps.png > runs/pacs-heatmaps/drawings.json
	$(CAM) --out runs/pacs-heatmaps/sketches.png > runs/pacs-heatmaps/sketches.json
	$(MAKE) publish-pacs-heatmaps
	cp runs/pacs-heatmaps/drawings.json runs/pacs-heatmaps/sketches.json results/pacs-heatmaps

# Digits: trained on MNIST alone, tested on the other collections whose files are there.
DIGITS_TESTS ?= MNIST-M,USPS
reproduce-digits:
	$(DOMAINWISE) sweep --dataset Digits --setting single --space paper --algorithms ERM,DAT --hparams 1 --trials 5 \
	    --steps 10001 --test-domains $(DIGITS_TESTS) --out runs/digits --precision tf32 $(OPTIONS)
	$(MAKE) publish-digits

# Does training with DAT lower the penalty of IRM?
reproduce-theory:
	$(BACKGROUNDS) --algorithms ERM,IRM,DAT --trials 3 $(FIXED) --track penalties --out runs/theory $(OPTIONS)
	$(MAKE) publish-theory
