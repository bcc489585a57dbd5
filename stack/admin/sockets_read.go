package admin

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
	"strconv"
	"time"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

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
