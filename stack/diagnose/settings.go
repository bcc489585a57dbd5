package diagnose

import (
	"fmt"
	"strings"
	"time"
)

// Bounds of what a stack may be set up like.
const (
	// usualMTU is Ethernet's, and mtuSlack what a stack may have less than its port without a line:
	// as much as a tunnel takes.
	usualMTU, mtuSlack = 1500, 100
	// manyFull gives the full-sized packets per second from which on segmentation in software
	// counts.
	manyFull = 1000
	// softwareSums is the share of frames whose checksum software verified, of someFrames or more.
	softwareSums, someFrames = 0.1, 1000
)

func settingRules() []rule {
	return []rule{
		{Kind{"small-mtu", "the stack's MTU is smaller than the port's, or than Ethernet's: more " +
			"packets for the same bytes",
			"leave out --mtu; start the server again after the port's MTU has grown; " +
				"rdma-netstack status health has a notice of the link"}, smallMTU},
		{Kind{"no-tso", "the NIC does not segment what is sent, which costs a packet's work for " +
			"each segment",
			"rdma-netstack doctor; ethtool -K IF tso on for packet sockets; a card, or a " +
				"virtual function, with max_tso (rdma-netstack devices --verbose)"}, noTSO},
		{Kind{"software-checksums", "checksums of received frames are verified in software: the " +
			"NIC vouches for none of them",
			"ethtool -K IF rx on; no tunnel in front of the slice; rdma-netstack doctor " +
				"--first-contact tests the card"}, softwareChecksums},
		{Kind{"packet-sockets", "packet sockets carry the frames though the interface has an " +
			"RDMA device with rings: it is away, refused, or was not asked for",
			"rdma-netstack status health; rdma-netstack doctor; --backend rings says what is " +
				"in the way"}, packetSockets},
		{Kind{"capture-left-on", "a capture copies frames, for somebody who may have forgotten it",
			"end it: pgrep -af \"rdma-netstack capture\", or Wireshark; -c N and -C " +
				"bound the next one"}, runningCapture},
		{Kind{"debug-endpoints", "clients of the slice may ask for internals and for work that " +
			"costs much processor time",
			"--debug-endpoints=false"}, debugEndpoints},
	}
}

func smallMTU(o *observation) (float64, string) {
	mtu, port := o.after.Facts.MTU, o.after.Facts.PortMTU
	best := max(port-mtuSlack, usualMTU-mtuSlack)
	if mtu == 0 || mtu >= best {
		return 0, ""
	}
	best = max(port, usualMTU)
	return 20 * (1 - float64(mtu)/float64(best)), fmt.Sprintf("the MTU is %d, that of the port "+
		"%d; %d packets a second are sent", mtu, port, uint64(float64(o.sentPackets)/o.seconds))
}

func noTSO(o *observation) (float64, string) {
	size := share(o.sentBytes, o.sentPackets)
	rate := float64(o.sentPackets) / o.seconds
	if o.after.Facts.Segments || size < float64(o.after.Facts.MTU)/2 || rate < manyFull {
		return 0, ""
	}
	return 25, fmt.Sprintf("%.0f packets a second of %.0f bytes each, none of them left to the "+
		"NIC to segment", rate, size)
}

func softwareChecksums(o *observation) (float64, string) {
	verified := o.added("link_rx_verified")
	s := share(verified, o.packets)
	if verified < someFrames || s < softwareSums {
		return 0, ""
	}
	return 10 * min(1, s), fmt.Sprintf("%d of %d received frames (%s)", verified, o.packets,
		percent(min(1, s)))
}

func packetSockets(o *observation) (float64, string) {
	f, card := o.after.Facts, o.after.Host.Card
	if f.Backend != "packet" || card == "" {
		return 0, ""
	}
	evidence := fmt.Sprintf("frames go through packet sockets of %s, which has the device %s",
		f.Netdev, card)
	for _, r := range o.after.Health {
		if r.Reporter == "device" && r.State != "healthy" {
			evidence += fmt.Sprintf("; that is in error: %s", r.Reason)
		}
	}
	return 15, evidence
}

// runningCapture looks for captures that ran all the time.
func runningCapture(o *observation) (float64, string) {
	all := o.after.Facts.Captures
	if len(all) == 0 || !all[0].Before(o.before.Facts.Time) {
		return 0, ""
	}
	return 3, fmt.Sprintf("%d captures run, the first since %s, for %v", len(all),
		all[0].Local().Format(time.DateTime), o.after.Facts.Time.Sub(all[0]).Round(time.Second))
}

func debugEndpoints(o *observation) (float64, string) {
	if len(o.after.Facts.Debug) == 0 {
		return 0, ""
	}
	return 2, "served to clients: " + strings.Join(o.after.Facts.Debug, ", ")
}
