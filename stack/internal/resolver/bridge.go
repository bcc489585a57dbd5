package resolver

import (
	"context"
	"net"
	"os"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Net returns a resolver of package net whose questions go to our servers, for all types of
// records. Package net reads /etc/hosts, nsswitch.conf and the search domains of the machine;
// servers and the options of our resolv.conf are ours.
func (r *Resolver) Net() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: r.dialBridge}
}

// dialBridge stands in for package net's dialling of one of the machine's servers.
func (r *Resolver) dialBridge(ctx context.Context, network, _ string) (net.Conn, error) {
	if len(r.config().servers) == 0 {
		return nil, errNoDNS
	}
	b := bridge{resolver: r, ctx: ctx}
	if network == "tcp" {
		return &streamBridge{bridge: b}, nil
	}
	return &datagramBridge{bridge: b}, nil
}

// bridge is a connection for one question of package net. Reading from it asks each of our servers
// in turn until one gives an answer that package net takes, within the time that package net gives
// to one of its own.
type bridge struct {
	resolver *Resolver
	ctx      context.Context
	query    []byte
	deadline time.Time
}

// answer returns the answer to the query. If every server fails, it is the last one's.
func (b *bridge) answer(network string) ([]byte, error) {
	asked, q, err := read(b.query)
	if err != nil {
		return nil, errUnwritable
	}
	conf, at := b.resolver.config(), b.resolver.cfg.Clock
	networks := []string{network}
	if conf.useTCP {
		networks = []string{"tcp"}
	}
	// package net's deadline is of the system's clock
	end := at.Now().Add(conf.timeout)
	if !at.Virtual() && !b.deadline.IsZero() && b.deadline.Before(end) {
		end = b.deadline
	}
	var message []byte
	first := b.resolver.firstServer(conf)
	for i := range conf.servers {
		share := at.Until(end) / time.Duration(len(conf.servers)-i)
		server := conf.servers[(first+i)%len(conf.servers)]
		var a answer
		if a, err = b.resolver.exchange(b.ctx, conf, server, q, share, networks...); err != nil {
			if b.ctx.Err() != nil {
				break
			}
			continue
		}
		message = append([]byte(nil), a.message...)
		message[0], message[1] = byte(asked.header.ID>>8), byte(asked.header.ID)
		if reason := a.toFirst(q.Type); reason == nil || reason == errNoSuchHost {
			break
		}
	}
	if message != nil {
		return message, nil
	}
	return nil, err
}

// Write implements net.Conn.
func (b *bridge) Write(query []byte) (int, error) {
	b.query = append(b.query, query...)
	return len(query), nil
}

// SetDeadline implements net.Conn; package net calls it once, before Write.
func (b *bridge) SetDeadline(t time.Time) error {
	b.deadline = t
	return nil
}

func (b *bridge) Close() error                       { return nil }
func (b *bridge) LocalAddr() net.Addr                { return &net.UDPAddr{} }
func (b *bridge) RemoteAddr() net.Addr               { return &net.UDPAddr{} }
func (b *bridge) SetReadDeadline(t time.Time) error  { return b.SetDeadline(t) }
func (b *bridge) SetWriteDeadline(t time.Time) error { return b.SetDeadline(t) }

// datagramBridge describes a bridge that package net takes for a UDP socket, as it is a
// net.PacketConn.
type datagramBridge struct{ bridge }

// Read implements net.Conn. An answer that does not fit is cut, and says so: package net asks again
// by TCP.
func (d *datagramBridge) Read(b []byte) (int, error) {
	message, err := d.answer("udp")
	if err != nil {
		return 0, err
	}
	if len(message) > len(b) {
		if message, err = cut(message); err != nil {
			return 0, err
		}
	}
	return copy(b, message), nil
}

// cut returns a message's header, with the bit TC, and its question.
func cut(message []byte) ([]byte, error) {
	a, q, err := read(message)
	if err != nil {
		return nil, err
	}
	a.header.Truncated = true
	m := dnsmessage.Message{Header: a.header, Questions: []dnsmessage.Question{q}}
	return m.Pack()
}

// ReadFrom implements net.PacketConn.
func (d *datagramBridge) ReadFrom(b []byte) (int, net.Addr, error) {
	n, err := d.Read(b)
	return n, d.RemoteAddr(), err
}

// WriteTo implements net.PacketConn.
func (d *datagramBridge) WriteTo([]byte, net.Addr) (int, error) { return 0, os.ErrInvalid }

// streamBridge describes a bridge that package net takes for a TCP connection.
type streamBridge struct {
	bridge
	left []byte // of the answer
}

// Write implements net.Conn: it takes the query without its length.
func (s *streamBridge) Write(query []byte) (int, error) {
	if len(query) < 2 {
		return 0, os.ErrInvalid
	}
	_, err := s.bridge.Write(query[2:])
	return len(query), err
}

// Read implements net.Conn.
func (s *streamBridge) Read(b []byte) (int, error) {
	if s.left == nil {
		message, err := s.answer("tcp")
		if err != nil {
			return 0, err
		}
		s.left = framed(message)
	}
	n := copy(b, s.left)
	s.left = s.left[n:]
	return n, nil
}
