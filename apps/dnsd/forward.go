package dnsd

import (
	"context"
	"errors"

	"github.com/miekg/dns"
)

// forward fills r with what the first resolver that answers says of q's question, or with SERVFAIL. A query that came
// over TCP is asked again over TCP when the answer over UDP is cut short; a UDP asker is told so instead.
func (s *Server) forward(q, r *dns.Msg, network string) {
	s.counters.forwarded.Add(1)
	ask := new(dns.Msg)
	ask.SetQuestion(r.Question[0].Name, r.Question[0].Qtype)
	ask.CheckingDisabled = q.CheckingDisabled
	ask.SetEdns0(udpSize, q.IsEdns0() != nil && q.IsEdns0().Do())
	for _, resolver := range s.cfg.Forward {
		a, err := s.exchange(ask, "udp", resolver)
		if err == nil && a.Truncated && network == "tcp" {
			a, err = s.exchange(ask, "tcp", resolver)
		}
		if err != nil {
			s.cfg.Logger.Warn("resolver did not answer", "resolver", resolver, "question", ask.Question[0].Name, "error", err)
			continue
		}
		r.Rcode, r.Truncated, r.AuthenticatedData = a.Rcode, a.Truncated, a.AuthenticatedData
		r.Answer, r.Ns = a.Answer, a.Ns
		for _, rr := range a.Extra {
			if rr.Header().Rrtype != dns.TypeOPT {
				r.Extra = append(r.Extra, rr)
			}
		}
		return
	}
	s.counters.forwardFailed.Add(1)
	r.Rcode = dns.RcodeServerFailure
}

// exchange asks one resolver, from a port of its own, and takes only an answer to this very question.
func (s *Server) exchange(ask *dns.Msg, network, resolver string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.ForwardTimeout)
	defer cancel()
	conn, err := s.cfg.Dial(ctx, network, resolver)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ask.Id = dns.Id()
	client := dns.Client{Net: network, UDPSize: udpSize, Timeout: s.cfg.ForwardTimeout}
	a, _, err := client.ExchangeWithConnContext(ctx, ask, &dns.Conn{Conn: conn, UDPSize: udpSize})
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	want := ask.Question[0]
	if !a.Response || a.Opcode != dns.OpcodeQuery || len(a.Question) != 1 || a.Question[0].Qtype != want.Qtype || dns.CanonicalName(a.Question[0].Name) != want.Name {
		return nil, errors.New("answer to another question")
	}
	return a, nil
}
