package admin

import (
	"bytes"
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

// ReadSockets reads an answer of /sockets, from this version of the program at a tenth of what
// package json needs, and from any other as that does.
func ReadSockets(from io.Reader) ([]stack.Socket, error) {
	var b bytes.Buffer
	if _, err := b.ReadFrom(from); err != nil {
		return nil, err
	}
	p := parser{left: b.Bytes(), words: map[string]string{}}
	if all := p.sockets(); !p.bad && len(bytes.TrimSpace(p.left)) == 0 {
		return all, nil
	}
	var all []stack.Socket
	err := json.Unmarshal(b.Bytes(), &all)
	return all, err
}

// parser reads what appendSocket has written, and nothing else.
type parser struct {
	left  []byte
	bad   bool
	words map[string]string // each is kept once
}

func (p *parser) sockets() (all []stack.Socket) {
	p.skip("[")
	for !p.bad && !p.has("]") {
		if len(all) > 0 {
			p.skip(",")
		}
		all = append(all, p.socket())
	}
	return all
}

func (p *parser) socket() (s stack.Socket) {
	s.Network, s.State = p.word(`{"network":`), p.word(`,"state":`)
	s.RecvQ, s.SendQ = p.number(`,"recv_q":`), p.number(`,"send_q":`)
	s.Local, s.Remote = p.end(`,"local":`), p.end(`,"remote":`)
	if p.has(`,"drops":`) {
		s.Drops = p.count("")
	}
	s.Kernel = p.has(`,"kernel":true`)
	if p.has(`,"tcp":`) {
		s.TCP = p.info()
	}
	p.skip("}")
	return s
}

func (p *parser) info() *stack.TCPInfo {
	i := &stack.TCPInfo{Congestion: p.word(`{"congestion":`)}
	i.RTO, i.RTT = p.time(`,"rto_ns":`), p.time(`,"rtt_ns":`)
	i.RTTVar = p.time(`,"rttvar_ns":`)
	i.MSS, i.Cwnd = p.number(`,"mss":`), p.number(`,"cwnd":`)
	i.Ssthresh, i.Unacked = p.number(`,"ssthresh":`), p.number(`,"unacked":`)
	i.SegsOut, i.SegsIn = p.count(`,"segs_out":`), p.count(`,"segs_in":`)
	i.Retrans = p.count(`,"retrans":`)
	i.Timestamps, i.SACK = p.truth(`,"timestamps":`), p.truth(`,"sack":`)
	i.SndWscale, i.RcvWscale = p.number(`,"snd_wscale":`), p.number(`,"rcv_wscale":`)
	i.BytesAcked, i.BytesReceived = p.count(`,"bytes_acked":`), p.count(`,"bytes_received":`)
	p.skip("}")
	return i
}

// has skips text if it comes next.
func (p *parser) has(text string) bool {
	if len(p.left) < len(text) || string(p.left[:len(text)]) != text {
		return false
	}
	p.left = p.left[len(text):]
	return true
}

func (p *parser) skip(text string) {
	if !p.has(text) {
		p.bad = true
	}
}

// until returns what comes after name, up to one of two bytes.
func (p *parser) until(name string, one, other byte) []byte {
	p.skip(name)
	for n, c := range p.left {
		if c == one || c == other {
			b := p.left[:n]
			p.left = p.left[n:]
			return b
		}
	}
	p.bad = true
	return nil
}

// quoted returns a text without escapes.
func (p *parser) quoted(name string) []byte {
	p.skip(name)
	b := p.until(`"`, '"', '\\')
	p.skip(`"`)
	return b
}

func (p *parser) word(name string) string {
	b := p.quoted(name)
	w, known := p.words[string(b)]
	if !known {
		w = string(b)
		p.words[w] = w
	}
	return w
}

func (p *parser) end(name string) (at netip.AddrPort) {
	if at.UnmarshalText(p.quoted(name)) != nil {
		p.bad = true
	}
	return at
}

func (p *parser) count(name string) uint64 {
	n, err := strconv.ParseUint(string(p.until(name, ',', '}')), 10, 64)
	p.bad = p.bad || err != nil
	return n
}

func (p *parser) signed(name string) int64 {
	n, err := strconv.ParseInt(string(p.until(name, ',', '}')), 10, 64)
	p.bad = p.bad || err != nil
	return n
}

func (p *parser) number(name string) int { return int(p.signed(name)) }

func (p *parser) time(name string) time.Duration { return time.Duration(p.signed(name)) }

func (p *parser) truth(name string) bool {
	p.skip(name)
	is := p.has("true")
	if !is {
		p.skip("false")
	}
	return is
}
