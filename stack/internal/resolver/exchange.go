package resolver

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// maxDatagram gives the largest answer by UDP that we say we take, in bytes
// (https://dnsflagday.net/2020/).
const maxDatagram = 1232

// The reasons why a lookup fails, in package net's words.
var (
	errNoSuchHost  = errors.New("no such host")
	errLame        = errors.New("lame referral")
	errUnreadable  = errors.New("cannot unmarshal DNS message")
	errUnwritable  = errors.New("cannot marshal DNS message")
	errMisbehaving = errors.New("server misbehaving")
	errInvalid     = errors.New("invalid DNS response")
	errNoAnswer    = errors.New("no answer from DNS server")
	errFailing     = &temporaryError{"server misbehaving"} // SERVFAIL
	errCanceled    = &canceledError{}
)

type temporaryError struct{ text string }

func (e *temporaryError) Error() string   { return e.text }
func (e *temporaryError) Timeout() bool   { return false }
func (e *temporaryError) Temporary() bool { return true }

type canceledError struct{}

func (*canceledError) Error() string        { return "operation was canceled" }
func (*canceledError) Is(target error) bool { return target == context.Canceled }

type timeoutError struct{}

func (*timeoutError) Error() string        { return "i/o timeout" }
func (*timeoutError) Timeout() bool        { return true }
func (*timeoutError) Temporary() bool      { return true }
func (*timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// fromContext puts the error of a context into package net's words.
func fromContext(err error) error {
	switch err {
	case context.Canceled:
		return errCanceled
	case context.DeadlineExceeded:
		return &timeoutError{}
	}
	return err
}

// dnsError wraps a reason for a lookup's failure.
func dnsError(err error, name, server string) *net.DNSError {
	e := &net.DNSError{Err: err.Error(), Name: name, Server: server,
		IsNotFound: err == errNoSuchHost}
	if n, ok := err.(net.Error); ok {
		//lint:ignore SA1019 package net fills in this field, which programs still read
		e.IsTimeout, e.IsTemporary = n.Timeout(), n.Temporary()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		e.UnwrapErr = err
	}
	return e
}

// answer is a server's answer; its parser stands behind the question.
type answer struct {
	message []byte
	header  dnsmessage.Header
	parser  dnsmessage.Parser
	server  string
}

// ask asks the servers for the records of a type of an absolute name, each up to conf.attempts
// times, until one gives an answer that can be used or says that there is none. The parser of what
// it returns stands at the first record of the type.
func (r *Resolver) ask(ctx context.Context, conf *dnsConfig, name string,
	t dnsmessage.Type) (answer, error) {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return answer{}, dnsError(errUnwritable, name, "")
	}
	if len(conf.servers) == 0 {
		return answer{}, dnsError(errNoDNS, name, "")
	}
	q := dnsmessage.Question{Name: n, Type: t, Class: dnsmessage.ClassINET}
	var failure error
	first := r.firstServer(conf)
	for range conf.attempts {
		for i := range conf.servers {
			server := conf.servers[(first+i)%len(conf.servers)]
			a, err := r.exchange(ctx, conf, server, q, conf.timeout, conf.networks()...)
			if err == nil {
				if err = a.toFirst(t); err == nil {
					return a, nil
				}
			}
			if ctx.Err() != nil {
				return answer{}, dnsError(fromContext(ctx.Err()), name, server)
			}
			e := dnsError(err, name, server)
			if err == errNoSuchHost {
				return answer{}, e
			}
			if _, ok := err.(*net.OpError); ok { // another attempt may go well
				e.IsTemporary = true
			}
			failure = e
		}
	}
	return answer{}, failure
}

// exchange asks one server on the networks in turn: the next one when the answer says that it was
// cut. Each may take as long as timeout.
func (r *Resolver) exchange(ctx context.Context, conf *dnsConfig, server string,
	q dnsmessage.Question, timeout time.Duration, networks ...string) (answer, error) {
	var a answer
	id := uint16(rand.Uint32())
	query, err := question(id, q, conf.trustAD)
	if err != nil {
		return a, errUnwritable
	}
	for i, network := range networks {
		a, err = r.roundTrip(ctx, network, server, id, q, query, timeout)
		if err != nil {
			return a, fromContext(err)
		}
		if err := a.parser.SkipQuestion(); err != dnsmessage.ErrSectionDone {
			return a, errInvalid // it repeats more than our question
		}
		a.server = server
		if !a.header.Truncated || network == "tcp" || i == len(networks)-1 {
			return a, nil
		}
	}
	return a, errNoAnswer
}

// roundTrip sends a query and waits for the answer to it.
func (r *Resolver) roundTrip(ctx context.Context, network, server string, id uint16,
	q dnsmessage.Question, query []byte, timeout time.Duration) (answer, error) {
	limited, cancel := r.cfg.Clock.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := r.cfg.Dial(limited, network, server)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	if end, ok := limited.Deadline(); ok {
		c.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() }) // ends a Read in progress
	defer stop()
	if _, datagrams := c.(net.PacketConn); datagrams {
		return datagramTrip(c, id, q, query)
	}
	return streamTrip(c, id, q, query)
}

// question returns a query with an OPT record (RFC 6891), unless GODEBUG says netedns0=0.
func question(id uint16, q dnsmessage.Question, authenticated bool) ([]byte, error) {
	q.Class = dnsmessage.ClassINET
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true, AuthenticData: authenticated},
		Questions: []dnsmessage.Question{q},
	}
	if !ednsOff() {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(maxDatagram, dnsmessage.RCodeSuccess, false); err != nil {
			return nil, err
		}
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	return m.Pack()
}

// ednsOff reports whether the environment switches EDNS off, as it does for package net.
func ednsOff() bool {
	off := false
	for s := range strings.SplitSeq(os.Getenv("GODEBUG"), ",") {
		if value, ok := strings.CutPrefix(s, "netedns0="); ok {
			off = value == "0"
		}
	}
	return off
}

// datagramTrip ignores what is no answer to the query: it may be forged, and the true one may
// come yet.
func datagramTrip(c net.Conn, id uint16, q dnsmessage.Question, query []byte) (answer, error) {
	if _, err := c.Write(query); err != nil {
		return answer{}, err
	}
	b := make([]byte, maxDatagram)
	for {
		n, err := c.Read(b)
		if err != nil {
			return answer{}, err
		}
		if a, got, err := read(b[:n]); err == nil && a.fits(id, q, got) {
			return a, nil
		}
	}
}

// streamTrip uses the framing of RFC 1035 section 4.2.2.
func streamTrip(c net.Conn, id uint16, q dnsmessage.Question, query []byte) (answer, error) {
	if _, err := c.Write(framed(query)); err != nil {
		return answer{}, err
	}
	length := make([]byte, 2)
	if _, err := io.ReadFull(c, length); err != nil {
		return answer{}, err
	}
	b := make([]byte, int(length[0])<<8|int(length[1]))
	if _, err := io.ReadFull(c, b); err != nil {
		return answer{}, err
	}
	a, got, err := read(b)
	if err != nil {
		return answer{}, errUnreadable
	}
	if !a.fits(id, q, got) {
		return answer{}, errInvalid
	}
	return a, nil
}

// framed puts a message's length before it.
func framed(message []byte) []byte {
	return append([]byte{byte(len(message) >> 8), byte(len(message))}, message...)
}

// read parses the header and the question of a message.
func read(b []byte) (a answer, q dnsmessage.Question, err error) {
	a.message = b
	if a.header, err = a.parser.Start(b); err == nil {
		q, err = a.parser.Question()
	}
	return a, q, err
}

// fits reports whether a is an answer to the query of that ID and question; q is the question that
// it repeats.
func (a *answer) fits(id uint16, asked, q dnsmessage.Question) bool {
	return a.header.Response && a.header.ID == id && q.Type == asked.Type &&
		q.Class == dnsmessage.ClassINET && equalNames(q.Name, asked.Name)
}

// equalNames compares names without regard to the case of ASCII letters.
func equalNames(x, y dnsmessage.Name) bool {
	if x.Length != y.Length {
		return false
	}
	for i, b := range x.Data[:x.Length] {
		if lower(b) != lower(y.Data[i]) {
			return false
		}
	}
	return true
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}

// toFirst moves the parser to the first record of a type. Without one, and for NXDOMAIN, the error
// is errNoSuchHost, which is final; any other error is the server's fault, and another one may know
// better.
func (a *answer) toFirst(t dnsmessage.Type) error {
	if err := a.usable(); err != nil {
		return err
	}
	for {
		h, err := a.parser.AnswerHeader()
		switch {
		case err == dnsmessage.ErrSectionDone:
			return errNoSuchHost
		case err != nil:
			return errUnreadable
		case h.Type == t:
			return nil
		}
		if err := a.parser.SkipAnswer(); err != nil {
			return errUnreadable
		}
	}
}

// usable returns the error that an answer's header makes.
func (a *answer) usable() error {
	code, additional := a.code()
	if code == dnsmessage.RCodeNameError {
		return errNoSuchHost
	}
	_, err := a.parser.AnswerHeader()
	if err != nil && err != dnsmessage.ErrSectionDone {
		return errUnreadable
	}
	switch code {
	case dnsmessage.RCodeSuccess:
		// A server that neither knows nor asks others refers us to the ones that do.
		if err != nil && !additional && !a.header.Authoritative && !a.header.RecursionAvailable {
			return errLame
		}
		return nil
	case dnsmessage.RCodeServerFailure:
		return errFailing
	}
	return errMisbehaving
}

// code returns the response code, with the bits that an OPT record adds (RFC 6891 section 6.1.3),
// and whether there is any additional record. The parser stays where it is.
func (a *answer) code() (code dnsmessage.RCode, additional bool) {
	p := a.parser
	p.SkipAllAnswers()
	p.SkipAllAuthorities()
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return a.header.RCode, additional
		}
		additional = true
		if h.Type == dnsmessage.TypeOPT {
			return h.ExtendedRCode(a.header.RCode), true
		}
		if p.SkipAdditional() != nil {
			return a.header.RCode, true
		}
	}
}

// addrs returns the addresses from the parser's place to the end of the answers, whoever's they
// are: a recursive server sends those of the names that aliases lead to. With err they are none.
func (a *answer) addrs(err error, host string) (ips []netip.Addr, _ error) {
	for err == nil {
		var h dnsmessage.ResourceHeader
		h, err = a.parser.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			return ips, nil
		}
		switch {
		case err != nil:
		case h.Type == dnsmessage.TypeA:
			var rr dnsmessage.AResource
			if rr, err = a.parser.AResource(); err == nil {
				ips = append(ips, netip.AddrFrom4(rr.A))
			}
		case h.Type == dnsmessage.TypeAAAA:
			var rr dnsmessage.AAAAResource
			if rr, err = a.parser.AAAAResource(); err == nil {
				ips = append(ips, netip.AddrFrom16(rr.AAAA))
			}
		default:
			err = a.parser.SkipAnswer()
		}
		if err != nil {
			return ips, dnsError(errUnreadable, host, a.server)
		}
	}
	return ips, err
}
