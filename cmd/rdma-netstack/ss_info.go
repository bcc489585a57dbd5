package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// infoLine is what ss -i prints below a socket (misc/ss.c, tcp_stats_print): its words and their
// order, and like it without what is 0 or at its default.
func (f *ssFlags) infoLine(s stack.Socket) string {
	if s.Network == "udp" {
		return fmt.Sprintf("drops:%d", s.Drops) // ss has it as d in skmem
	}
	i := s.TCP
	if i == nil {
		return ""
	}
	var b strings.Builder
	word := func(wanted bool, format string, args ...any) {
		if wanted {
			fmt.Fprintf(&b, format, args...)
			b.WriteByte(' ')
		}
	}
	word(s.Kernel, "kernel")
	word(i.Timestamps, "ts")
	word(i.SACK, "sack")
	word(i.Congestion != "", "%s", i.Congestion)
	word(i.SndWscale+i.RcvWscale > 0, "wscale:%d,%d", i.SndWscale, i.RcvWscale)
	word(i.RTO > 0, "rto:%g", ms(i.RTO))
	word(i.RTT > 0, "rtt:%g/%g", ms(i.RTT), ms(i.RTTVar))
	word(i.MSS > 0, "mss:%d", i.MSS)
	word(i.Cwnd > 0, "cwnd:%d", i.Cwnd)
	word(i.Ssthresh > 0 && i.Ssthresh < noThreshold, "ssthresh:%d", i.Ssthresh)
	word(i.BytesAcked > 0, "bytes_acked:%d", i.BytesAcked)
	word(i.BytesReceived > 0, "bytes_received:%d", i.BytesReceived)
	word(i.SegsOut > 0, "segs_out:%d", i.SegsOut)
	word(i.SegsIn > 0, "segs_in:%d", i.SegsIn)
	if i.RTT > 0 {
		bits := float64(i.MSS) * float64(i.Cwnd) * 8 / i.RTT.Seconds()
		word(bits > 0, "send %sbps", f.bits(bits))
	}
	word(i.Unacked > 0, "unacked:%d", i.Unacked)
	// the first is of segments in flight, which netstack does not tell
	word(i.Retrans > 0, "retrans:0/%d", i.Retrans)
	return strings.TrimRight(b.String(), " ")
}

// noThreshold and more is no slow start threshold (linux TCP_INFINITE_SSTHRESH; ss leaves out
// 0xffff and more).
const noThreshold = 0xffff

// bits is a rate as ss prints it: a number with -n, else in K or M.
func (f *ssFlags) bits(n float64) string {
	switch {
	case f.numeric:
		return fmt.Sprintf("%.0f", n)
	case n > 1e6:
		return fmt.Sprintf("%.1fM", n/1e6)
	case n > 1e3:
		return fmt.Sprintf("%.1fK", n/1e3)
	}
	return fmt.Sprintf("%g", n)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
