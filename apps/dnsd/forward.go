package dnsd

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// forwardQuery asks a resolver for the question of q, which came over network from client, together
// with others with the same question. deliver is called once, later, with the answer or nil. False:
// too many are in progress.
func (s *Server) forwardQuery(q, r *dns.Msg, network string, client netip.Addr,
	deliver func(*dns.Msg)) bool {
	opt := q.IsEdns0()
	what := question{
		name: r.Question[0].Name, qtype: r.Question[0].Qtype, network: network,
		dnssec: opt != nil && opt.Do(), checkingDisabled: q.CheckingDisabled,
	}
	ctx, cancel := context.WithCancel(s.ctx)
	fresh, ok := s.flights.joinOrStart(what, waiter{shareOf(client), deliver}, cancel)
	if fresh == nil {
		cancel()
	}
	switch {
	case !ok:
		s.counters.forwardRefused.Add(1)
	case fresh == nil:
		s.counters.merged.Add(1)
	default:
		s.counters.forwarded.Add(1)
		go func() {
			defer cancel()
			s.flights.completeFlight(fresh, s.lookUp(ctx, what))
		}()
	}
	return ok
}

// shareOf returns the prefix that counts as one client: an IPv4 address, or a /64 of IPv6.
func shareOf(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(min(a.BitLen(), 64)) // the zero Prefix of the zero Addr
	return p
}

// lookUp returns the answer of the first resolver that answers, or nil. A query that came over TCP
// is repeated over TCP when the answer over UDP is truncated; a UDP client gets the truncated
// answer.
func (s *Server) lookUp(ctx context.Context, what question) *dns.Msg {
	ask := new(dns.Msg)
	ask.SetQuestion(what.name, what.qtype)
	ask.CheckingDisabled = what.checkingDisabled
	ask.SetEdns0(udpSize, what.dnssec)
	for _, resolver := range s.cfg.Forward {
		a, err := s.askResolver(ctx, ask, "udp", resolver)
		if errors.Is(err, errOtherCase) || err == nil && a.Truncated && what.network == "tcp" {
			a, err = s.askResolver(ctx, ask, "tcp", resolver)
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			lowerNames(a, what.name)
			return a
		}
		s.cfg.Logger.Warn("resolver did not answer", "resolver", resolver, "question", what.name,
			"error", err)
	}
	s.counters.forwardFailed.Add(1)
	return nil
}

// fillFromAnswer puts a resolver's answer into r; without one r is SERVFAIL.
func fillFromAnswer(r, a *dns.Msg) {
	if a == nil {
		r.Rcode = dns.RcodeServerFailure
		return
	}
	r.Rcode, r.Truncated, r.AuthenticatedData = a.Rcode, a.Truncated, a.AuthenticatedData
	r.Answer, r.Ns = a.Answer, a.Ns
	for _, rr := range a.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			r.Extra = append(r.Extra, rr)
		}
	}
}

var (
	errOtherQuestion = errors.New("answer to another question")
	errOtherCase     = errors.New("answer with the question in other letters")
)

// askResolver asks one resolver, from a port of its own and in a random case of its own, and
// accepts only an answer to this question. Over TCP, where forging is impossible, the case may be
// lost.
func (s *Server) askResolver(ctx context.Context, ask *dns.Msg,
	network, resolver string) (*dns.Msg, error) {
	ctx, cancel := s.cfg.Clock.WithTimeout(ctx, s.cfg.ForwardTimeout)
	defer cancel()
	conn, err := s.cfg.Dial(ctx, network, resolver)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	want := &ask.Question[0]
	ask.Id, want.Name = uint16(s.random.Uint64()), s.mixedCase(want.Name)
	client := dns.Client{Net: network, UDPSize: udpSize, Timeout: s.cfg.ForwardTimeout}
	a, _, err := client.ExchangeWithConnContext(ctx, ask, &dns.Conn{Conn: conn, UDPSize: udpSize})
	switch {
	case err != nil:
		return nil, errors.Join(err, ctx.Err())
	case !a.Response || a.Opcode != dns.OpcodeQuery || len(a.Question) != 1 ||
		a.Question[0].Qtype != want.Qtype:
		return nil, errOtherQuestion
	case dns.CanonicalName(a.Question[0].Name) != dns.CanonicalName(want.Name):
		return nil, errOtherQuestion
	case network == "udp" && a.Question[0].Name != want.Name:
		return nil, errOtherCase
	}
	return a, nil
}

// mixedCase spells a name in random case: each letter is one more bit that a forged answer has to
// guess (draft-vixie-dnsext-dns0x20). Escapes (\065) have no letters.
func (s *Server) mixedCase(name string) string {
	b := []byte(strings.ToLower(name))
	bits := make([]byte, (len(b)+7)/8)
	s.random.Read(bits)
	for i, c := range b {
		if 'a' <= c && c <= 'z' && bits[i/8]>>(i%8)&1 == 1 {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

// lowerNames restores lower case in the names that an answer has compressed to the question's.
func lowerNames(a *dns.Msg, name string) {
	for _, section := range [][]dns.RR{a.Answer, a.Ns, a.Extra} {
		for _, rr := range section {
			h := rr.Header()
			h.Name = lowerTail(h.Name, name)
			switch rr := rr.(type) {
			case *dns.CNAME:
				rr.Target = lowerTail(rr.Target, name)
			case *dns.NS:
				rr.Ns = lowerTail(rr.Ns, name)
			case *dns.MX:
				rr.Mx = lowerTail(rr.Mx, name)
			case *dns.SOA:
				rr.Ns, rr.Mbox = lowerTail(rr.Ns, name), lowerTail(rr.Mbox, name)
			}
		}
	}
}

// lowerTail returns s with the labels that it ends in as name does in lower case.
func lowerTail(s, name string) string {
	n := dns.CompareDomainName(s, name)
	if n == 0 {
		return s
	}
	labels := dns.Split(s)
	at := labels[len(labels)-n]
	return s[:at] + strings.ToLower(s[at:])
}
