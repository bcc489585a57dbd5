package main

import (
	"fmt"
	"io"
	"net/http"
)

// streams is how many requests are in flight on each connection of HTTP/2 and HTTP/3.
const streams = 8

// http2 keeps Flows requests in flight, some on each connection.
func (r *runner) http2() (metrics, error) {
	var conns []http.RoundTripper
	for range max(1, r.Flows/streams) {
		c := &http.Transport{DialContext: r.host.Dial, TLSClientConfig: clientTLS(),
			ForceAttemptHTTP2: true}
		defer c.CloseIdleConnections()
		conns = append(conns, c)
	}
	return r.pages(conns, portHTTP+overTLS, "HTTP/2.0")
}

// pages keeps Flows requests in flight, divided between connections, which it opens first: a
// Transport that has none opens one for each request.
func (r *runner) pages(conns []http.RoundTripper, port int, protocol string) (metrics, error) {
	url := pageOf("https", port)
	for _, c := range conns {
		if err := r.fetch(c, url, protocol); err != nil {
			return nil, err
		}
	}
	return r.repeat(r.Flows, func(i int) error {
		return r.fetch(conns[i%len(conns)], url, protocol)
	})
}

// fetch gets the page and checks its protocol and length.
func (r *runner) fetch(t http.RoundTripper, url, protocol string) error {
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (n != int64(len(body)) || resp.StatusCode != 200 || resp.Proto != protocol) {
		err = fmt.Errorf("%s, status %d, %d bytes", resp.Proto, resp.StatusCode, n)
	}
	return err
}
