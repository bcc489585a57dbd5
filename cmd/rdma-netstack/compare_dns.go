package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/miekg/dns"
)

// dnsAsker queries for one address from one socket.
func dnsAsker(ctx context.Context, s *contender) (func() error, func(), error) {
	conn, err := s.dial(ctx, "udp", s.dns)
	if err != nil {
		return nil, nil, err
	}
	query, err := new(dns.Msg).SetQuestion("www.example.", dns.TypeA).Pack()
	if err != nil {
		return nil, nil, err
	}
	q := &dnsQuestion{conn: conn, query: query, buf: make([]byte, dns.MinMsgSize)}
	return func() error { return q.ask(ctx) }, func() { conn.Close() }, nil
}

// askAgain gives the time after which a query is repeated whose datagram, or answer, was lost.
const askAgain = time.Second

// dnsQuestion describes a query that is sent repeatedly, from one socket.
type dnsQuestion struct {
	conn       net.Conn
	query, buf []byte
	id         uint16
}

func (q *dnsQuestion) ask(ctx context.Context) error {
	q.id++
	binary.BigEndian.PutUint16(q.query, q.id)
	for ctx.Err() == nil {
		if err := q.conn.SetDeadline(time.Now().Add(askAgain)); err != nil {
			return err
		}
		if _, err := q.conn.Write(q.query); err != nil {
			return err
		}
		if err := q.await(); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return ctx.Err()
}

// await skips late answers to earlier queries.
func (q *dnsQuestion) await() error {
	for {
		n, err := q.conn.Read(q.buf)
		switch {
		case err != nil:
			return err
		case n <= len(q.query):
			return fmt.Errorf("an answer of %d bytes: % x", n, q.buf[:min(n, 12)])
		case binary.BigEndian.Uint16(q.buf) == q.id:
			return nil
		}
	}
}
