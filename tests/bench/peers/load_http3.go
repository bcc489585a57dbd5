package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// http3 keeps Flows requests in flight, some on each connection.
func (r *runner) http3() (metrics, error) {
	conns, err := r.quic(max(1, r.Flows/streams))
	if err != nil {
		return nil, err
	}
	defer conns.close()
	all := make([]http.RoundTripper, len(conns))
	for i, c := range conns {
		all[i] = c.http
	}
	return r.pages(all, r.Port, "HTTP/3.0")
}

// http3Down reads from the source on every connection.
func (r *runner) http3Down() (metrics, error) {
	conns, err := r.quic(r.Flows)
	if err != nil {
		return nil, err
	}
	defer conns.close()
	return r.transfers(len(conns), func(i int, end time.Time) (total uint64, err error) {
		resp, err := r.do(conns[i].http, http.MethodGet, "source", nil)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		buf := make([]byte, bulkBuffer)
		for time.Now().Before(end) {
			n, err := resp.Body.Read(buf)
			total += uint64(n)
			if err != nil {
				return total, err
			}
		}
		return total, nil
	})
}

// http3Up sends to the sink on every connection; the server reports how many bytes arrived.
func (r *runner) http3Up() (metrics, error) {
	conns, err := r.quic(r.Flows)
	if err != nil {
		return nil, err
	}
	defer conns.close()
	return r.transfers(len(conns), func(i int, end time.Time) (total uint64, err error) {
		resp, err := r.do(conns[i].http, http.MethodPost, "sink", until(end))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = fmt.Fscan(resp.Body, &total)
		return total, err
	})
}

func (r *runner) do(t http.RoundTripper, method, page string, body io.Reader) (*http.Response,
	error) {
	req, err := http.NewRequestWithContext(r.ctx, method, pageOf("https", r.Port)+page, body)
	if err != nil {
		return nil, err
	}
	return t.RoundTrip(req)
}

// until is a reader of zeros that ends at that time.
type until time.Time

func (u until) Read(b []byte) (int, error) {
	if !time.Now().Before(time.Time(u)) {
		return 0, io.EOF
	}
	return len(b), nil
}

// quicClient is a connection of HTTP/3 on a socket of its own.
type quicClient struct {
	http *http3.Transport
	quic *quic.Transport
	conn net.PacketConn
}

type quicClients []*quicClient

func (r *runner) quic(n int) (conns quicClients, err error) {
	for range n {
		pc, err := r.host.ListenUDP(0)
		if err != nil {
			conns.close()
			return nil, err
		}
		c := &quicClient{quic: &quic.Transport{Conn: pc}, conn: pc}
		c.http = &http3.Transport{TLSClientConfig: clientTLS(), Dial: c.dial}
		conns = append(conns, c)
	}
	return conns, nil
}

func (c *quicClient) dial(ctx context.Context, addr string, secret *tls.Config,
	config *quic.Config) (*quic.Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	return c.quic.DialEarly(ctx, net.UDPAddrFromAddrPort(to), secret, config)
}

func (q quicClients) close() (err error) {
	for _, c := range q {
		err = errors.Join(err, c.http.Close(), c.quic.Close(), c.conn.Close())
	}
	return err
}
