package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// socketsPiece says how much is written at a time, in bytes: it takes a few hundred microseconds,
// and then others may run.
const socketsPiece = 32 << 10

// sockets answers with the JSON of all sockets.
func (h *handler) sockets(w http.ResponseWriter, _ *http.Request) {
	beginJSON(w)
	WriteSockets(w, h.Stack.Sockets()) // who asked is gone if it fails
}

// WriteSockets writes what /sockets answers, piece by piece: that of 10,000 connections is 4 MB.
// Others may run in between.
func WriteSockets(w io.Writer, all []stack.Socket) error {
	b := append(make([]byte, 0, socketsPiece+1<<10), '[')
	for i := range all {
		if i > 0 {
			b = append(b, ',')
		}
		if b = appendSocket(b, &all[i]); len(b) >= socketsPiece {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
			runtime.Gosched()
		}
	}
	_, err := w.Write(append(b, "]\n"...))
	return err
}

// appendSocket appends what package json makes of a socket, at a tenth of the cost.
func appendSocket(b []byte, s *stack.Socket) []byte {
	o := object{append(b, '{')}
	o.text("network", s.Network)
	o.text("state", s.State)
	o.number("recv_q", int64(s.RecvQ))
	o.number("send_q", int64(s.SendQ))
	o.end("local", s.Local)
	o.end("remote", s.Remote)
	if s.Drops > 0 {
		o.count("drops", s.Drops)
	}
	if s.Kernel {
		o.truth("kernel", true)
	}
	if s.TCP != nil {
		o.name("tcp")
		o.b = appendTCPInfo(o.b, s.TCP)
	}
	return append(o.b, '}')
}

func appendTCPInfo(b []byte, i *stack.TCPInfo) []byte {
	o := object{append(b, '{')}
	o.text("congestion", i.Congestion)
	o.time("rto_ns", i.RTO)
	o.time("rtt_ns", i.RTT)
	o.time("rttvar_ns", i.RTTVar)
	o.number("mss", int64(i.MSS))
	o.number("cwnd", int64(i.Cwnd))
	o.number("ssthresh", int64(i.Ssthresh))
	o.number("unacked", int64(i.Unacked))
	o.count("segs_out", i.SegsOut)
	o.count("segs_in", i.SegsIn)
	o.count("retrans", i.Retrans)
	o.truth("timestamps", i.Timestamps)
	o.truth("sack", i.SACK)
	o.number("snd_wscale", int64(i.SndWscale))
	o.number("rcv_wscale", int64(i.RcvWscale))
	o.count("bytes_acked", i.BytesAcked)
	o.count("bytes_received", i.BytesReceived)
	return append(o.b, '}')
}

// object holds the JSON of an object, in the making.
type object struct{ b []byte }

func (o *object) name(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) number(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) count(name string, n uint64) {
	o.name(name)
	o.b = strconv.AppendUint(o.b, n, 10)
}

func (o *object) time(name string, d time.Duration) { o.number(name, int64(d)) }

func (o *object) truth(name string, is bool) {
	o.name(name)
	o.b = strconv.AppendBool(o.b, is)
}

// text is for words of this program's own, which are ASCII without quotes.
func (o *object) text(name, word string) {
	o.name(name)
	o.b = append(o.b, '"')
	o.b = append(o.b, word...)
	o.b = append(o.b, '"')
}

// end has a zone only in what package json is asked for: names of interfaces may have any byte.
func (o *object) end(name string, at netip.AddrPort) {
	o.name(name)
	if at.Addr().Zone() != "" {
		text, _ := json.Marshal(at)
		o.b = append(o.b, text...)
		return
	}
	o.b = append(o.b, '"')
	o.b, _ = at.AppendText(o.b) // which has no error
	o.b = append(o.b, '"')
}
