package dv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

// Feature is one thing this driver can do on some devices, and whether it does.
type Feature struct {
	Name string
	On   bool
	// Why is how it is used, if On; else the reason it is not, which begins with
	// "choice:", "device:", "kernel:" or "driver:", by what turned it off.
	Why string
}

// newFeature makes a Feature, which is on unless one of its obstacles is there.
func newFeature(name, how string, obstacles ...obstacle) Feature {
	for _, o := range obstacles {
		if o.there {
			return Feature{name, false, o.why}
		}
	}
	return Feature{name, true, how}
}

// obstacle is a reason for a feature to be off. The first that is there counts.
type obstacle struct {
	there bool
	why   string
}

// Features explains what is used of the device and, of what is not, why.
func (d *Device) Features() []Feature {
	return append(d.rxFeatures(), d.txFeatures()...)
}

// Probe is Features of the device that cfg would open. It asks the device and
// its kernel and makes no queues and no rules: no frame is touched.
func Probe(cfg Config) ([]Feature, error) {
	t, err := locatePort(&cfg)
	if err != nil {
		return nil, err
	}
	d := newDevice(cfg, t)
	for _, stage := range []func() error{
		func() error { return d.makePlan(t) },
		func() error { return d.openContext(t) },
		func() error { return d.checkDevice(t) },
	} {
		if err = stage(); err != nil {
			break
		}
	}
	var features []Feature
	if err == nil {
		features = d.Features()
	}
	if err = errors.Join(err, d.cleanup.undoAll()); err != nil {
		return nil, asPermission(fmt.Errorf("ask %s: %w", d.Name(), err))
	}
	return features, nil
}

func (d *Device) rxFeatures() []Feature {
	caps, c := d.context.Caps(), &d.config
	return []Feature{
		newFeature("receive checksum", "result in Packet.Flags",
			obstacle{!d.caps.RxCsum, "device: no checksum offload on raw packet queues"}),
		newFeature("receive spreading (RSS)", "by addresses and ports, or addresses",
			obstacle{d.plan.rx == 1, "choice: RxQueues is 1"}),
		newFeature("completion compression", d.keptByMiniCQEs(),
			obstacle{c.Tuning.NoCompression, "choice: NoCompression is set"},
			obstacle{caps.CQECompression == 0, "device: no compression of completions"},
			obstacle{d.compression() == 0, "device: not in the format of this ring"}),
		newFeature("striding receive ring", "several frames share a buffer",
			obstacle{!canStride(&caps), "device: no striding receive queues"},
			obstacle{!c.Rings.Striding, "choice: Striding is not set"}),
		newFeature("multi-segment receive", fmt.Sprintf("%d buffers of %d bytes per frame",
			d.plan.segs, d.plan.frame),
			obstacle{c.Rings.Striding, "choice: Striding is set"},
			obstacle{c.Tuning.NoMultiSegment, "choice: NoMultiSegment is set"},
			obstacle{d.plan.segs == 1, "choice: frames of this MTU fit one buffer"}),
		newFeature("VLAN stripping", "tag in Packet.VLAN",
			obstacle{!c.Tuning.StripVLAN && c.VLAN == 0,
				"choice: neither StripVLAN nor VLAN is set"},
			obstacle{!d.stripsVLAN(), "device: cannot; tags are taken out in software"}),
		newFeature("VLAN steering", fmt.Sprintf("only frames of network %d", c.VLAN),
			obstacle{c.VLAN == 0, "choice: VLAN is not set"}),
		newFeature("delay drop", "a frame waits for a buffer",
			obstacle{!c.Rings.DelayDrop, "choice: DelayDrop is not set"}),
		newFeature("shared multicast", "Linux keeps its copy",
			obstacle{c.HostMode, "choice: HostMode leaves multicast to Linux"},
			obstacle{!d.caps.SharedMulticast,
				"device: rules cannot copy, and TakeMulticast is set"}),
		newFeature("fragments left to Linux", "by a rule ahead of those by port",
			obstacle{!c.HostMode, "choice: HostMode is not set"},
			obstacle{!d.caps.RulesToLinux, "kernel: no rules that lead to Linux, or the device " +
				"has none"}),
		newFeature("event moderation", "by EventFrames and EventMicroseconds",
			obstacle{caps.ModerationMaxCount == 0, "device: cannot hold events back"},
			obstacle{c.Tuning.EventFrames == 0, "choice: EventFrames is 0"}),
		newFeature("receive timestamps", "Packet.Timestamp",
			obstacle{caps.CoreClockKHz == 0 && !d.caps.RealTimeStamps,
				"kernel: does not tell the rate of the clock"}),
		newFeature("receive coalescing by the NIC (LRO)", "",
			obstacle{true,
				"kernel: verbs cannot ask for it, only DEVX can; segments are merged in software " +
					"instead"}),
	}
}

func (d *Device) txFeatures() []Feature {
	caps, c := d.context.Caps(), &d.config
	return []Feature{
		newFeature("send checksum", "TxL3Csum and TxL4Csum",
			obstacle{!d.caps.TxCsum, "device: no checksum offload on raw packet queues"}),
		newFeature("segmentation (TSO)", "TxPacket.MSS",
			obstacle{d.caps.MaxTSO == 0, "device: does not segment"}),
		newFeature("segmentation of datagrams (USO)", "TxPacket.UDP",
			obstacle{d.caps.MaxTSO == 0, "device: does not segment"}),
		newFeature("send without a copy", fmt.Sprintf("of payload to be segmented, from "+
			"%d bytes", d.plan.sendMemory),
			obstacle{c.sendMemory == nil, "choice: WithSendMemory is not used"},
			obstacle{d.sendMemory.err != nil, fmt.Sprintf("driver: %v", d.sendMemory.err)},
			obstacle{d.plan.sendMemory == 0, "kernel: no more memory may be locked"}),
		newFeature("multi-packet send", "frames with the same flags share a descriptor",
			obstacle{c.Tuning.NoMultiPacketSend, "choice: NoMultiPacketSend is set"},
			obstacle{!caps.EnhancedMPW, "device: no enhanced multi-packet send"},
			obstacle{!d.caps.MultiPacketSend, "device: wants headers inline in every descriptor"}),
		newFeature("VLAN insertion by the NIC", "",
			obstacle{true,
				"kernel: verbs do not tell whether the device can; TxVLAN writes the tag into " +
					"the frame"}),
		newFeature("headers in the descriptor",
			fmt.Sprintf("%d bytes of each frame, as the device demands", d.caps.MinInline),
			obstacle{d.caps.MinInline == 0, "device: does not demand it"}),
		newFeature("relaxed ordering", "frames may be written to memory out of order",
			obstacle{!caps.OptionalMRAccess, "kernel: too old to be asked"}),
		newFeature("BlueFlame", "a lone descriptor goes with its doorbell",
			obstacle{caps.BFRegSize == 0, "device: doorbells cannot carry descriptors here"},
			obstacle{!c.Tuning.BlueFlame, "choice: BlueFlame is not set"},
			obstacle{!d.context.WriteCombining(),
				"kernel: does not map doorbells write-combining on this machine"}),
	}
}

// keptByMiniCQEs says what compressed completions tell of each frame.
func (d *Device) keptByMiniCQEs() string {
	if d.plan.striding {
		return "keeping the first stride"
	}
	return "keeping the hash"
}

// canStride reports whether the device has rings of our geometry.
func canStride(c *uverbs.DeviceCaps) bool {
	return c.Striding && c.MinStrideLogBytes <= logStride && c.MaxStrideLogBytes >= logStride &&
		c.MinLogStridesInWQE <= logStrides && c.MaxLogStridesInWQE >= logStrides
}

// featureSummary returns the names of the features that are on, and those that are off with
// the reason.
func featureSummary(features []Feature) (on, off string) {
	var lists [2][]string
	for _, f := range features {
		if f.On {
			lists[0] = append(lists[0], f.Name)
		} else {
			lists[1] = append(lists[1], f.Name+" ("+f.Why+")")
		}
	}
	return strings.Join(lists[0], ", "), strings.Join(lists[1], ", ")
}
