package diagnose

import "fmt"

// resentSegments gives the share that is worth a line, lateSegments that of those only late.
const resentSegments, lateSegments = 0.005, 0.015

func resentRules() []rule {
	return []rule{
		{Kind{"retransmits-loss", "segments get lost on the way",
			"compare the counters of switch, cable and peer (ethtool -S at both ends); " +
				"rdma-netstack ss -ti shows which connections"}, lostSegments},
		{Kind{"retransmits-reordering", "segments come late or out of order, and are sent again " +
			"though the peer has them: several paths, or a peer without a processor",
			"have the network keep the order of a flow (hash of bonds and ECMP by flow, not by " +
				"packet); processors for the peer"}, reorderedSegments},
		{Kind{"retransmits-timeout", "nothing tells of a loss before a timer does: the last " +
			"segments of an answer are lost, or the path is down for moments",
			"look for moments without a path (switch, pause frames, rdma-netstack status " +
				"health), then for losses"}, timedOutSegments},
	}
}

// resent tells what was sent again, by cause: as an acknowledgement was late, for nothing; after a
// timeout; though the peer had it; else lost.
type resent struct{ all, needless, timeout, late, lost, sent uint64 }

func (o *observation) resent() (r resent) {
	r.sent = o.added("tcp_segments_sent")
	all, spared := o.added("tcp_retransmits", "link_tx_resent"), o.added("link_tx_spared")
	r.all = all - min(all, spared)
	r.needless = min(r.all, o.added("link_tx_needless"))
	told := o.added("tcp_segments_acked_with_dsack")
	r.late = min(r.all-r.needless, told-min(told, r.needless))
	rest := r.all - r.needless - r.late
	r.timeout = min(rest, o.added("tcp_timeouts", "tcp_slow_start_retransmits"))
	r.lost = rest - r.timeout
	return r
}

// describe says how many segments were sent again for a cause; "" if that is less than a share.
func (r resent) describe(n uint64, worth float64, cause string) string {
	if n < least || share(n, r.sent) < worth {
		return ""
	}
	return fmt.Sprintf("%d of %d segments (%s) were sent again %s, %d for any reason", n, r.sent,
		percent(share(n, r.sent)), cause, r.all)
}

func lostSegments(o *observation) (float64, string) {
	r := o.resent()
	if e := r.describe(r.lost, resentSegments, "as the peer told that they are missing"); e != "" {
		return costOfLoss(share(r.lost, r.sent)), e
	}
	return 0, ""
}

func reorderedSegments(o *observation) (float64, string) {
	r := o.resent()
	if e := r.describe(r.late, lateSegments, "though the peer had them already"); e != "" {
		return costOfLoss(share(r.late, r.sent)) / 4, e
	}
	return 0, ""
}

func timedOutSegments(o *observation) (float64, string) {
	r := o.resent()
	if e := r.describe(r.timeout, resentSegments, "as a timer expired"); e != "" {
		return costOfLoss(2 * share(r.timeout, r.sent)), e
	}
	return 0, ""
}
