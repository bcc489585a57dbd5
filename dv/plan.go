package dv

import (
	"cmp"
	"math/bits"

	"github.com/rdma-netstack/rdma-netstack/dv/mlx5"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// plan says how much of what a device gets: all sizes, before anything is made.
type plan struct {
	rx, tx     int // queues
	active     int // receive queues that the indirection table leads to at first
	rxEntries  int // frames of a receive ring, completions of its queue
	txBlocks   int // blocks of a send ring, completions of its queue
	stage      int // bytes of staging memory of a send queue
	frame      int // bytes of a frame buffer
	segs       int // frame buffers of a receive descriptor
	striding   bool
	spare      int // frames beyond those of the receive rings
	sendMemory int // bytes of WithSendMemory; 0: none
	inline     int // longest frame in its descriptor as a whole
	pageSize   int
	mtu        int // asked for, or the port's
	frameLimit int // longest frame with that MTU, in bytes
	mtuLimit   int // largest MTU that the buffers take, if the port's is raised later
}

// Bounds of what Config may ask for, and the budget that defaults keep.
const (
	minRing      = 64
	maxRing      = 1 << 15 // a send ring's counter has 16 bits, and must tell full from empty
	minStage     = 128 << 10
	maxStage     = 1 << 30
	maxQueues    = 256
	minMTU       = 576
	maxMTU       = 16 << 10
	minInlineMax = ethMin
	maxInlineMax = 900 // what fits a descriptor of either kind
	pinnedBudget = 30 << 20
)

// Defaults before they are cut down to the budget.
const (
	defaultMTU   = 1500
	defaultRing  = 1024
	defaultStage = 1 << 20
	defaultSpare = 256
	// defaultSendMemory is what the windows of some tens of fast connections take.
	defaultSendMemory = 16 << 20
	// leastSendMemory is worth a memory region.
	leastSendMemory = 1 << 20
)

// frameOverhead is an Ethernet header and one VLAN tag.
const frameOverhead = ethHeader + vlanTag

// newPlan fills in defaults for a port whose MTU is portMTU. Sizes that cfg leaves open are halved,
// the largest use of memory first, until everything fits the budget.
func newPlan(cfg *Config, portMTU, pageSize int) (plan, error) {
	p := plan{
		rx:        cmp.Or(cfg.RxQueues, 1),
		tx:        cmp.Or(cfg.TxQueues, 1),
		rxEntries: cmp.Or(cfg.Rings.RxQueueSize, defaultRing),
		txBlocks:  cmp.Or(cfg.Rings.TxQueueSize, defaultRing),
		stage:     cmp.Or(cfg.Tuning.TxBufferSize, defaultStage),
		spare:     cmp.Or(cfg.Tuning.SpareFrames, defaultSpare),
		mtu:       cmp.Or(cfg.MTU, portMTU),
		pageSize:  pageSize,
		inline:    cmp.Or(cfg.Tuning.TxInline, inlineMax),
	}
	p.active = cmp.Or(cfg.ActiveRxQueues, p.rx)
	if err := p.checkSizes(cfg, portMTU); err != nil {
		return p, err
	}
	p.frameLimit = p.mtu + frameOverhead
	p.segs = 1
	switch {
	case cfg.Rings.Striding:
		p.striding, p.frame = true, slabSize
		p.spare = max(4, p.spare*p.strideBytes()/slabSize)
	case !cfg.Tuning.NoMultiSegment:
		p.segs = segmentsPerFrame(p.frameLimit)
		p.spare *= p.segs
		fallthrough
	default:
		p.frame = (((p.frameLimit+p.segs-1)/p.segs+cacheLine-1)/cacheLine | 1) * cacheLine
	}
	p.mtuLimit = p.mtu
	if cfg.MTU == 0 {
		p.mtuLimit = min(max(p.mtu, p.segs*p.frame-frameOverhead), maxMTU)
	}
	p.shrinkToBudget(cfg, pinnedBudget)
	if cfg.sendMemory != nil {
		p.sendMemory = defaultSendMemory
	}
	return p, nil
}

// longestBuffer gives the longest frame that is given one buffer, in bytes: any
// longer ones are given several.
const longestBuffer = 38 * cacheLine

// segmentsPerFrame returns how many buffers hold a frame of n bytes.
func segmentsPerFrame(n int) int {
	segs := 1
	for segs*longestBuffer < n {
		segs *= 2
	}
	return segs
}

// Validate says in one sentence which number of n no port takes, and what is taken, or returns nil.
// Open refuses further ones that its port does not take, such as an MTU above the port's.
func (n *NIC) Validate() error {
	if n.VLAN > maxVLAN {
		return errorOfKind(ErrConfig, "VLAN is %d and must be a number from 1 to %d, or 0 for none",
			n.VLAN, maxVLAN)
	}
	if n.MTU != 0 && (n.MTU < minMTU || n.MTU > maxMTU) {
		return errorOfKind(ErrConfig, "MTU is %d and must be a number from %d to %d, or 0 for the "+
			"port's", n.MTU, minMTU, maxMTU)
	}
	return nil
}

func (p *plan) checkSizes(cfg *Config, portMTU int) error {
	if err := cfg.NIC.Validate(); err != nil {
		return err
	}
	for _, c := range []struct {
		name         string
		v, low, high int
		power        bool
	}{
		{"RxQueues", p.rx, 1, maxQueues, false},
		{"TxQueues", p.tx, 1, maxQueues, false},
		{"ActiveRxQueues", p.active, 1, p.rx, false},
		{"RxQueueSize", p.rxEntries, minRing, maxRing, true},
		{"TxQueueSize", p.txBlocks, minRing, maxRing, true},
		{"TxBufferSize", p.stage, minStage, maxStage, true},
		{"TxInline", p.inline, minInlineMax, maxInlineMax, false},
		{"SpareFrames", p.spare, 1, 1 << 20, false},
		{"MTU", p.mtu, minMTU, min(maxMTU, portMTU), false},
	} {
		if c.v < c.low || c.v > c.high || c.power && bits.OnesCount(uint(c.v)) != 1 {
			kind := "a number"
			if c.power {
				kind = "a power of two"
			}
			return errorOfKind(ErrConfig, "%s is %d and must be %s from %d to %d",
				c.name, c.v, kind, c.low, c.high)
		}
	}
	if cfg.Tuning.EventFrames > 0 && cfg.Tuning.EventMicroseconds == 0 {
		return errorOfKind(ErrConfig,
			"EventFrames is %d and EventMicroseconds 0: the last frames of a burst would never "+
				"be told of",
			cfg.Tuning.EventFrames)
	}
	return nil
}

// shrinkToBudget halves what cfg left open until the plan fits a budget of so many bytes, or
// nothing is left to halve.
func (p *plan) shrinkToBudget(cfg *Config, budget int) {
	for p.pinnedBytes() > budget {
		switch {
		case cfg.Tuning.TxBufferSize == 0 && p.stage > minStage &&
			p.tx*p.stage >= p.rx*p.rxRing()*p.segs*p.frame:
			p.stage /= 2
		case cfg.Rings.RxQueueSize == 0 && p.rxEntries > 4*minRing:
			p.rxEntries /= 2
		case cfg.Tuning.TxBufferSize == 0 && p.stage > minStage:
			p.stage /= 2
		case cfg.Rings.TxQueueSize == 0 && p.txBlocks > 4*minRing:
			p.txBlocks /= 2
		case cfg.Rings.RxQueueSize == 0 && p.rxEntries > minRing:
			p.rxEntries /= 2
		case cfg.Rings.TxQueueSize == 0 && p.txBlocks > minRing:
			p.txBlocks /= 2
		case cfg.Tuning.SpareFrames == 0 && budget < pinnedBudget && p.spare > p.leastSpare():
			p.spare = max(p.spare/2, p.leastSpare())
		default:
			return
		}
	}
}

// shrinkToLimit makes all of it fit a limit of so many bytes, or as small as it can be: memory that
// can be done without first.
func (p *plan) shrinkToLimit(cfg *Config, limit int) {
	for p.pinnedBytes() > limit && p.sendMemory > 0 {
		if p.sendMemory /= 2; p.sendMemory < leastSendMemory {
			p.sendMemory = 0
		}
	}
	p.shrinkToBudget(cfg, limit)
}

// leastSpare returns the buffers for 64 frames, which a worker's batch and some packets under way
// need; of a striding ring 4 slabs.
func (p *plan) leastSpare() int {
	if p.striding {
		return 4
	}
	return 64 * p.segs
}

func (p *plan) frameCount() int { return p.rx*p.rxRing()*p.segs + p.spare }

// strideBytes returns the longest frame in whole strides.
func (p *plan) strideBytes() int { return (p.frameLimit + strideSize - 1) &^ (strideSize - 1) }

// rxRing returns the descriptors of a receive ring: one per frame or, of a striding
// ring, as many slabs as hold so many of the longest.
func (p *plan) rxRing() int {
	if !p.striding {
		return p.rxEntries
	}
	slabs := (p.rxEntries*p.strideBytes() + slabSize - 1) / slabSize
	return max(4, 1<<bits.Len(uint(slabs-1)))
}

// rxCompletions returns the completions that a full receive ring can lead to.
func (p *plan) rxCompletions() int {
	if p.striding {
		return p.rxRing() * strides
	}
	return p.rxRing()
}

// rxWQE returns the size of a receive descriptor in bytes.
func (p *plan) rxWQE() int {
	if p.striding {
		return stridingWQE
	}
	return p.segs * mlx5.DataSegSize
}

// strideGeometry returns the geometry to tell the kernel; nil for a ring without strides.
func (p *plan) strideGeometry() *uverbs.Striding {
	if !p.striding {
		return nil
	}
	return &uverbs.Striding{LogStrideBytes: logStride, LogStrides: logStrides}
}

// Bytes of the parts, in whole pages where the part is a ring.
func (p *plan) arenaBytes() int { return p.pageBytes(p.frameCount()*p.frame) + p.tx*p.stage }
func (p *plan) rqBytes() int    { return p.pageBytes(p.rxRing() * p.rxWQE()) }
func (p *plan) rxCQBytes() int  { return p.pageBytes(p.rxCompletions() * mlx5.CQESize) }
func (p *plan) sqBytes() int    { return p.pageBytes(p.txBlocks * mlx5.BB) }
func (p *plan) txCQBytes() int  { return p.pageBytes(p.txBlocks * mlx5.CQESize) }

// cacheLine gives the unit of frame buffers, in bytes. Their size is an odd number of lines: with a
// power of two, all headers would fall on the same few sets of the processor's caches.
const cacheLine = 64

// recordStride keeps doorbell records, of 8 bytes, on cache lines of their own.
const recordStride = 64

// Each queue has two doorbell records: its own and its completion queue's.
func (p *plan) recordBytes() int { return p.pageBytes((p.rx + p.tx) * 2 * recordStride) }

func (p *plan) ringBytes() int {
	return p.recordBytes() + p.rx*(p.rqBytes()+p.rxCQBytes()) + p.tx*(p.sqBytes()+p.txCQBytes())
}

// pinnedBytes returns the bytes the kernel will pin for all of it.
func (p *plan) pinnedBytes() int { return p.arenaBytes() + p.ringBytes() + p.sendMemory }

func (p *plan) pageBytes(n int) int { return (n + p.pageSize - 1) &^ (p.pageSize - 1) }
