# The experiments of docs/reproduction.md: `make reproduce-NAME` trains into runs/NAME and publishes to results/NAME.
#
# Every target continues: what results/NAME or runs/NAME hold is not trained again. Ctrl-C or `timeout` saves, and
# `make publish-NAME` then publishes the draws that are whole. AGAIN=1 repeats instead: it trains everything anew into
# runs/again/NAME and publishes nothing. ONLY=ERM,DAT trains these methods alone. OPTIONS go to every sweep, where the
# last value counts: --device cuda, --workers 8, --time-limit 8h, --hparams 8 --trials 3.
# The data is looked for in $DOMAINWISE_DATA. Records of ColoredMNIST, RotatedMNIST and PACS are bf16, those of Digits
# tf32; not every device has these, and OPTIONS may name another precision, for records of their own.
AGAIN ?=
ONLY ?=
OPTIONS ?=
RUNS := runs$(if $(AGAIN),/again)
READY_IF_OURS := $(if $(filter $(BIN)/domainwise,$(DOMAINWISE)),$(READY))

# $(call train,COMMAND,METHODS,MORE) is a sweep of these methods, or of those that ONLY names; without any it is empty.
COMMA := ,
SPACE := $(subst ,, )
define NEWLINE


endef
chosen = $(strip $(if $(ONLY),$(filter $(subst $(COMMA), ,$(ONLY)),$(1)),$(1)))
train = $(if $(call chosen,$(2)),$(1) --algorithms $(subst $(SPACE),$(COMMA),$(call chosen,$(2))) $(3) $(OPTIONS))

# $(call soups,FOLDER,METHODS,MORE) makes a soup of the mild draws of each method, unseen domain and trial.
soups = $(foreach method,$(call chosen,$(2)),$(DOMAINWISE) soup $(1) --algorithm "$(method) (mild)" $(3)$(NEWLINE))

EXPERIMENTS := demo-settings demo-robustness cmnist cmnist-all cmnist-noise backgrounds backgrounds-radius backgrounds-batch backgrounds-averages rotated rotated-all rotated-penalty pacs pacs-torchvision pacs-search pacs-radius pacs-averages pacs-probes digits theory

.PHONY: $(EXPERIMENTS:%=reproduce-%) $(EXPERIMENTS:%=unpack-%)

$(EXPERIMENTS:%=reproduce-%): reproduce-%: unpack-%

$(EXPERIMENTS:%=unpack-%): unpack-%: $(READY_IF_OURS)
	$(if $(AGAIN),,test ! -e results/$*/runs.jsonl.gz || $(DOMAINWISE) unpack results/$* runs/$*)

publish-%: $(READY_IF_OURS)
	$(if $(AGAIN),@echo "not published: compare $(RUNS)/$* with results/$*",$(DOMAINWISE) publish runs/$* results/$*)

# The settings of the demo, chosen by training-domain validation with a seed that the demo does not have: the learning
# rate of all methods by ERM, then the radius of UAT and of DAT, which agree, after 300 steps as after 500.
# `make demo publish-demo` publishes the demo itself.
DEMO_SHARED := $(DOMAINWISE) sweep --dataset BackgroundDigits --hparams 1 --device cpu --hparam batch_size=64
DEMO_SETTINGS := $(DEMO_SHARED) --trials 2 --steps 501 --seed 100 --out $(RUNS)/demo-settings
DEMO_RATES := --grid lr=0.001,0.002,0.004
DEMO_RADII := --hparam lr=0.004 --hparam alpha=0.8 --grid eps=0.5,1,2
reproduce-demo-settings:
	$(call train,$(DEMO_SETTINGS),ERM,$(DEMO_RATES))
	$(call train,$(DEMO_SETTINGS),UAT DAT,$(DEMO_RADII))
	$(MAKE) publish-demo-settings

# The demo's runs with five seeds, each in both precisions and with one and two threads; tables keep all of them apart.
DEMO_RUNS := $(DEMO_SHARED) --trials 3 --steps 351 --hparam lr=0.004 --hparam eps=0.5 --hparam alpha=0.8 \
    --out $(RUNS)/demo-robustness
reproduce-demo-robustness:
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 0 --threads 1 --precision fp32)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 0 --threads 2 --precision bf16)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 1 --threads 2 --precision fp32)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 1 --threads 1 --precision bf16)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 2 --threads 1 --precision fp32)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 2 --threads 2 --precision bf16)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 3 --threads 2 --precision fp32)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 3 --threads 1 --precision bf16)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 4 --threads 1 --precision fp32)
	$(call train,$(DEMO_RUNS),ERM UAT DAT,--seed 4 --threads 2 --precision bf16)
	$(MAKE) publish-demo-robustness

# ColoredMNIST: Table 1's column, Table 9, and Ensemble UAT of Table 4, with as many draws as the paper has. Sweeps train
# draw by draw: after an interruption `make audit-cmnist publish-cmnist` publishes those that are whole. WRM and AT, with
# eleven passes a step, come last. The audit asks every selected model whether it follows colour or digit.
CMNIST := $(DOMAINWISE) reproduce table1 --dataset ColoredMNIST --hparams 20 --trials 3 --out $(RUNS)/cmnist --precision bf16
AUDIT_DEVICE ?= cpu
reproduce-cmnist:
	$(call train,$(CMNIST),ERM DAT UAT IRM VREx GroupDRO)
	$(MAKE) audit-cmnist publish-cmnist
	$(call train,$(CMNIST),ADA)
	$(call train,$(CMNIST:table1=table4),EnsembleUAT)
	$(call train,$(CMNIST),WRM)
	$(call train,$(CMNIST),AT)
	$(MAKE) audit-cmnist publish-cmnist

.PHONY: audit-cmnist
audit-cmnist:
	$(DOMAINWISE) audit $(RUNS)/cmnist --selected --device $(AUDIT_DEVICE)

# How many of ColoredMNIST's wrong labels are memorised? All images are judged, those trained on too; a small network
# at the defaults, on a CPU.
CMNIST_NOISE := $(DOMAINWISE) sweep --dataset ColoredMNIST --network mlp --space paper --hparams 1 --trials 3 --steps 5001 \
    --evaluate-every 250 --full-curves --device cpu --out $(RUNS)/cmnist-noise
reproduce-cmnist-noise:
	$(call train,$(CMNIST_NOISE),ERM DAT AT)
	$(MAKE) publish-cmnist-noise

# BackgroundDigits, every method at fixed hyper-parameters (these, and defaults): the paper's own and those it
# starts from, all others, the two of eleven passes a step, and ARM, whose second network is much larger than the first.
BACKGROUNDS := $(DOMAINWISE) sweep --dataset BackgroundDigits --hparams 1 --device cpu
FIXED := --hparam batch_size=32 --hparam eps=2 --hparam alpha=0.2
EVERY_METHOD := $(BACKGROUNDS) --trials 5 --out $(RUNS)/backgrounds
reproduce-backgrounds:
	$(call train,$(EVERY_METHOD),ERM IRM VREx GroupDRO UAT DAT LDAT EnsembleUAT ADA,$(FIXED))
	$(call train,$(EVERY_METHOD),CORAL MMD DANN CDANN MTL Mixup MLDG RSC SagNet,--hparam batch_size=32)
	$(call train,$(EVERY_METHOD),AT WRM,$(FIXED))
	$(call train,$(EVERY_METHOD),ARM,--hparam batch_size=32)
	$(MAKE) publish-backgrounds

# Radius x step size in l2, and in l_inf (the same length if every pixel moved alike: eps / sqrt(2352)).
BACKGROUNDS_RADIUS := $(BACKGROUNDS) --trials 3 --hparam batch_size=32 --out $(RUNS)/backgrounds-radius
RADII_L2 := --grid norm=l2 --grid eps=0.5,1,2,4,8 --grid alpha=0.05,0.2,0.8
RADII_LINF := --grid norm=linf --grid eps=0.01,0.04,0.16 --grid alpha=0.001,0.004,0.016
reproduce-backgrounds-radius:
	$(call train,$(BACKGROUNDS_RADIUS),ERM)
	$(call train,$(BACKGROUNDS_RADIUS),DAT UAT,$(RADII_L2))
	$(call train,$(BACKGROUNDS_RADIUS),DAT,$(RADII_LINF))
	$(MAKE) publish-backgrounds-radius

BACKGROUNDS_BATCH := $(BACKGROUNDS) --trials 3 --grid batch_size=8,16,32,64 --out $(RUNS)/backgrounds-batch
reproduce-backgrounds-batch:
	$(call train,$(BACKGROUNDS_BATCH),ERM)
	$(call train,$(BACKGROUNDS_BATCH),DAT,--hparam eps=2 --hparam alpha=0.2)
	$(MAKE) publish-backgrounds-batch

# What averaged weights and soups add to a method, at the settings of reproduce-backgrounds.
MILD := --space soup --hparams 4
AVERAGED := ERM DAT CORAL MIRO SAM
AVERAGES := $(BACKGROUNDS) --trials 3 $(FIXED) --out $(RUNS)/backgrounds-averages
reproduce-backgrounds-averages:
	$(call train,$(AVERAGES),$(AVERAGED),--average sma)
	$(call train,$(AVERAGES),$(AVERAGED),--average swad)
	$(call train,$(AVERAGES),$(AVERAGED),$(MILD))
	$(call soups,$(RUNS)/backgrounds-averages,$(AVERAGED),--device cpu)
	$(MAKE) publish-backgrounds-averages

# RotatedMNIST of the DomainBed table.
ROTATED := $(DOMAINWISE) reproduce db --dataset RotatedMNIST --hparams 1 --trials 3 --out $(RUNS)/rotated --precision bf16
reproduce-rotated:
	$(call train,$(ROTATED),ERM IRM DAT)
	$(MAKE) publish-rotated

# How much of IRM's gap to ERM is the weight of its penalty? A small network, on a CPU.
PENALTY := $(DOMAINWISE) sweep --dataset RotatedMNIST --network mlp --hparams 1 --trials 3 --steps 2001 --device cpu \
    --out $(RUNS)/rotated-penalty
PENALTIES := --grid penalty=0.1,1,10,100
reproduce-rotated-penalty:
	$(call train,$(PENALTY),ERM)
	$(call train,$(PENALTY),IRM,$(PENALTIES))
	$(MAKE) publish-rotated-penalty

# Every method at its defaults, in three trials. ColoredMNIST with the protocol's 5,001 steps; RotatedMNIST with a fifth
# of them, after which ERM is 1.6 points below its end in results/rotated. Each line can be published by itself; the
# methods with eleven passes a step come last.
ALL_ROTATED := $(DOMAINWISE) sweep --dataset RotatedMNIST --steps 1001 --hparams 1 --trials 3 --precision bf16 \
    --out $(RUNS)/rotated-all
ALL_CMNIST := $(DOMAINWISE) sweep --dataset ColoredMNIST --steps 5001 --hparams 1 --trials 3 --precision bf16 \
    --out $(RUNS)/cmnist-all
define EVERY_METHOD_OF
	$(call train,$(1),ERM IRM VREx GroupDRO SD EQRM RDM UAT DAT LDAT EnsembleUAT ADA)
	$(call train,$(1),CORAL MMD DANN CDANN MTL Mixup MLDG RSC SagNet ARM)
	$(call train,$(1),IB_ERM IB_IRM Fishr Fish ANDMask SANDMask IGA SelfReg CAD CondCAD)
	$(call train,$(1),CausIRL_CORAL CausIRL_MMD Transfer TRM URM ADRMX SAM SAGM MIRO ERMPlusPlus)
	$(call train,$(1),AT WRM)
endef
reproduce-rotated-all:
	$(call EVERY_METHOD_OF,$(ALL_ROTATED))
	$(MAKE) publish-rotated-all
reproduce-cmnist-all:
	$(call EVERY_METHOD_OF,$(ALL_CMNIST))
	$(MAKE) publish-cmnist-all

# PACS with ImageNet ResNet-50, with fewer steps than the paper's: the defaults, and AT, with eleven passes a step, once.
PACS_STEPS := $(DOMAINWISE) sweep --dataset PACS --steps 1501 --precision bf16
PACS := $(PACS_STEPS) --network resnet50-v1
reproduce-pacs:
	$(call train,$(PACS),ERM DAT UAT,--hparams 1 --trials 3 --out $(RUNS)/pacs)
	$(call train,$(PACS),AT,--hparams 1 --trials 1 --out $(RUNS)/pacs)
	$(MAKE) publish-pacs

# The same from torchvision's weights, whose strides are not the original ones: `domainwise weights get resnet50`.
reproduce-pacs-torchvision:
	$(call train,$(PACS_STEPS) --network resnet50,ERM DAT UAT,--hparams 1 --trials 3 --out $(RUNS)/pacs-torchvision)
	$(MAKE) publish-pacs-torchvision

# A few draws of each by DomainBed's ranges; the first is the defaults again.
reproduce-pacs-search:
	$(call train,$(PACS),ERM DAT UAT,--hparams 3 --trials 2 --out $(RUNS)/pacs-search)
	$(MAKE) publish-pacs-search

# The radii of the paper's range on PACS, the step size a tenth of them as in its ranges; both updates, with and without
# averaged weights, in one trial. Then the best three by validation in three trials, their pairs in PACS_RADII:
# make reproduce-pacs-radius PACS_RADII='1:0.1 3:0.3 10:1' OPTIONS='--trials 3'
PACS_RADII ?= 0.1:0.01 0.3:0.03 1:0.1 3:0.3 10:1 30:3 100:10
PACS_RADIUS := $(PACS) --hparams 1 --trials 1 --average sma --out $(RUNS)/pacs-radius
UPDATES := --grid update=joint,literal
reproduce-pacs-radius:
	$(call train,$(PACS_RADIUS),ERM)
	$(foreach pair,$(PACS_RADII),$(call train,$(PACS_RADIUS),DAT,--grid eps=$(subst :, --grid alpha=,$(pair)) $(UPDATES))$(NEWLINE))
	$(MAKE) publish-pacs-radius

# What averaged weights and soups add to a method on photographs and drawings, at the defaults.
PACS_AVERAGES := $(PACS) --hparams 1 --trials 3 --out $(RUNS)/pacs-averages
reproduce-pacs-averages:
	$(call train,$(PACS_AVERAGES),$(AVERAGED),--average sma)
	$(call train,$(PACS_AVERAGES),$(AVERAGED),--average swad)
	$(call train,$(PACS_AVERAGES),$(AVERAGED),$(MILD))
	$(call soups,$(RUNS)/pacs-averages,$(AVERAGED))
	$(MAKE) publish-pacs-averages

# Is what we lack on sketches ours? A plain loop, then one ingredient of a training of ours after the other, and ours.
CONTROLS := control stored augment kernels kernels,precision kernels,precision,head kernels,precision,head,sampling \
    kernels,precision,head,sampling,adam engine engine,precision engine,precision,original
.PHONY: reproduce-pacs-control
reproduce-pacs-control: $(READY)
	$(if $(AGAIN),mkdir -p $(RUNS))
	$(BIN)/python benchmarks/pacs_control.py $(CONTROLS:%=--with %) --trials 10 --data-root $${DOMAINWISE_DATA:?} \
	    --json $(if $(AGAIN),$(RUNS),results/bench)/pacs-control.json $(OPTIONS)

# Probes: the features of ResNet-50 once (about six minutes on two cores), and every method trained on them at the
# defaults, but for those that begin after the last of these steps. A linear classifier has no features of its own:
# methods that only change features would be ERM, or IRM (IB_IRM). Perturbations and mixing happen in the features. AT and
# WRM come last, with eleven passes a step. The folder's path is part of the runs: the same everywhere.
PROBED := /tmp/pacs-resnet50-v1
PROBES := $(DOMAINWISE) sweep --dataset $(PROBED) --hparams 1 --trials 3 --device cpu --network linear \
    --out $(RUNS)/pacs-probes
reproduce-pacs-probes:
	$(DOMAINWISE) features PACS --network resnet50-v1 --device cpu --out $(PROBED)
	$(call train,$(PROBES),ERM IRM VREx GroupDRO SD UAT DAT LDAT EnsembleUAT ADA MTL Mixup MLDG RSC Fish ANDMask SANDMask IGA SelfReg URM SAM SAGM)
	$(call train,$(PROBES),EQRM RDM Fishr,--hparam anneal=500)
	$(call train,$(PROBES),AT WRM)
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
DIGITS := $(DOMAINWISE) sweep --dataset Digits --setting single --space paper --hparams 1 --trials 5 --steps 10001 \
    --test-domains $(DIGITS_TESTS) --out $(RUNS)/digits --precision tf32
reproduce-digits:
	$(call train,$(DIGITS),ERM DAT)
	$(MAKE) publish-digits

# Does training with DAT lower the penalty of IRM?
reproduce-theory:
	$(call train,$(BACKGROUNDS),ERM IRM DAT,--trials 3 $(FIXED) --track penalties --out $(RUNS)/theory)
	$(MAKE) publish-theory
