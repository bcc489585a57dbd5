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

// serveSockets answers with the JSON of all sockets.
func (h *handler) serveSockets(w http.ResponseWriter, _ *http.Request) {
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
	o.putText("network", s.Network)
	o.putText("state", s.State)
	o.putNumber("recv_q", int64(s.RecvQ))
	o.putNumber("send_q", int64(s.SendQ))
	o.putEnd("local", s.Local)
	o.putEnd("remote", s.Remote)
	if s.Drops > 0 {
		o.putCount("drops", s.Drops)
	}
	if s.Kernel {
		o.putBool("kernel", true)
	}
	if s.TCP != nil {
		o.putName("tcp")
		o.b = appendTCPInfo(o.b, s.TCP)
	}
	return append(o.b, '}')
}

func appendTCPInfo(b []byte, i *stack.TCPInfo) []byte {
	o := object{append(b, '{')}
	o.putText("congestion", i.Congestion)
	o.putTime("rto_ns", i.RTO)
	o.putTime("rtt_ns", i.RTT)
	o.putTime("rttvar_ns", i.RTTVar)
	o.putNumber("mss", int64(i.MSS))
	o.putNumber("cwnd", int64(i.Cwnd))
	o.putNumber("ssthresh", int64(i.Ssthresh))
	o.putNumber("unacked", int64(i.Unacked))
	o.putCount("segs_out", i.SegsOut)
	o.putCount("segs_in", i.SegsIn)
	o.putCount("retrans", i.Retrans)
	o.putBool("timestamps", i.Timestamps)
	o.putBool("sack", i.SACK)
	o.putNumber("snd_wscale", int64(i.SndWscale))
	o.putNumber("rcv_wscale", int64(i.RcvWscale))
	o.putCount("bytes_acked", i.BytesAcked)
	o.putCount("bytes_received", i.BytesReceived)
	o.putNumber("snd_wnd", int64(i.SndWnd))
	o.putNumber("snd_buf", int64(i.SndBuf))
	return append(o.b, '}')
}

// object holds the JSON of an object, in the making.
type object struct{ b []byte }

func (o *object) putName(name string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(o.b, '"')
	o.b = append(o.b, name...)
	o.b = append(o.b, '"', ':')
}

func (o *object) putNumber(name string, n int64) {
	o.putName(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) putCount(name string, n uint64) {
	o.putName(name)
	o.b = strconv.AppendUint(o.b, n, 10)
}

func (o *object) putTime(name string, d time.Duration) { o.putNumber(name, int64(d)) }

func (o *object) putBool(name string, is bool) {
	o.putName(name)
	o.b = strconv.AppendBool(o.b, is)
}

// putText writes words of this program's own, which are ASCII without quotes.
func (o *object) putText(name, word string) {
	o.putName(name)
	o.b = append(o.b, '"')
	o.b = append(o.b, word...)
	o.b = append(o.b, '"')
}

// putEnd writes a zone only in what package json is asked for: names of interfaces may have any
// byte.
func (o *object) putEnd(name string, at netip.AddrPort) {
	o.putName(name)
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
	if all := p.parseSockets(); !p.bad && len(bytes.TrimSpace(p.left)) == 0 {
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

func (p *parser) parseSockets() (all []stack.Socket) {
	p.skipText("[")
	for !p.bad && !p.skipIfNext("]") {
		if len(all) > 0 {
			p.skipText(",")
		}
		all = append(all, p.parseSocket())
	}
	return all
}

func (p *parser) parseSocket() (s stack.Socket) {
	s.Network, s.State = p.parseWord(`{"network":`), p.parseWord(`,"state":`)
	s.RecvQ, s.SendQ = p.parseNumber(`,"recv_q":`), p.parseNumber(`,"send_q":`)
	s.Local, s.Remote = p.parseEnd(`,"local":`), p.parseEnd(`,"remote":`)
	if p.skipIfNext(`,"drops":`) {
		s.Drops = p.parseCount("")
	}
	s.Kernel = p.skipIfNext(`,"kernel":true`)
	if p.skipIfNext(`,"tcp":`) {
		s.TCP = p.parseInfo()
	}
	p.skipText("}")
	return s
}

func (p *parser) parseInfo() *stack.TCPInfo {
	i := &stack.TCPInfo{Congestion: p.parseWord(`{"congestion":`)}
	i.RTO, i.RTT = p.parseTime(`,"rto_ns":`), p.parseTime(`,"rtt_ns":`)
	i.RTTVar = p.parseTime(`,"rttvar_ns":`)
	i.MSS, i.Cwnd = p.parseNumber(`,"mss":`), p.parseNumber(`,"cwnd":`)
	i.Ssthresh, i.Unacked = p.parseNumber(`,"ssthresh":`), p.parseNumber(`,"unacked":`)
	i.SegsOut, i.SegsIn = p.parseCount(`,"segs_out":`), p.parseCount(`,"segs_in":`)
	i.Retrans = p.parseCount(`,"retrans":`)
	i.Timestamps, i.SACK = p.parseBool(`,"timestamps":`), p.parseBool(`,"sack":`)
	i.SndWscale, i.RcvWscale = p.parseNumber(`,"snd_wscale":`), p.parseNumber(`,"rcv_wscale":`)
	i.BytesAcked = p.parseCount(`,"bytes_acked":`)
	i.BytesReceived = p.parseCount(`,"bytes_received":`)
	i.SndWnd, i.SndBuf = p.parseNumber(`,"snd_wnd":`), p.parseNumber(`,"snd_buf":`)
	p.skipText("}")
	return i
}

// skipIfNext skips text if it comes next.
func (p *parser) skipIfNext(text string) bool {
	if len(p.left) < len(text) || string(p.left[:len(text)]) != text {
		return false
	}
	p.left = p.left[len(text):]
	return true
}

func (p *parser) skipText(text string) {
	if !p.skipIfNext(text) {
		p.bad = true
	}
}

// takeUntil returns what comes after name, up to one of two bytes.
func (p *parser) takeUntil(name string, one, other byte) []byte {
	p.skipText(name)
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

// parseQuoted returns a text without escapes.
func (p *parser) parseQuoted(name string) []byte {
	p.skipText(name)
	b := p.takeUntil(`"`, '"', '\\')
	p.skipText(`"`)
	return b
}

func (p *parser) parseWord(name string) string {
	b := p.parseQuoted(name)
	w, known := p.words[string(b)]
	if !known {
		w = string(b)
		p.words[w] = w
	}
	return w
}

func (p *parser) parseEnd(name string) (at netip.AddrPort) {
	if at.UnmarshalText(p.parseQuoted(name)) != nil {
		p.bad = true
	}
	return at
}

func (p *parser) parseCount(name string) uint64 {
	n, err := strconv.ParseUint(string(p.takeUntil(name, ',', '}')), 10, 64)
	p.bad = p.bad || err != nil
	return n
}

func (p *parser) parseSigned(name string) int64 {
	n, err := strconv.ParseInt(string(p.takeUntil(name, ',', '}')), 10, 64)
	p.bad = p.bad || err != nil
	return n
}

func (p *parser) parseNumber(name string) int { return int(p.parseSigned(name)) }

func (p *parser) parseTime(name string) time.Duration { return time.Duration(p.parseSigned(name)) }

func (p *parser) parseBool(name string) bool {
	p.skipText(name)
	is := p.skipIfNext("true")
	if !is {
		p.skipText("false")
	}
	return is
}
