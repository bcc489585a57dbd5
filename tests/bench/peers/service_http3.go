package main

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/quic-go/quic-go/http3"

	slice "github.com/rdma-netstack/rdma-netstack/contrib/quic"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// http3Server has the page, a source of bytes and a sink, which reports how many it got.
func http3Server(c *tls.Config) *http3.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/", kilobyte)
	mux.HandleFunc("/source", func(w http.ResponseWriter, _ *http.Request) {
		buf := make([]byte, bulkBuffer)
		for {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/sink", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.CopyBuffer(io.Discard, r.Body, make([]byte, bulkBuffer))
		_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
	})
	return &http3.Server{TLSConfig: http3.ConfigureTLSConfig(c), Handler: mux}
}

// batched serves on a socket of ours as quic-go uses a kernel's, and on any other as it is.
func batched(serve func(net.PacketConn) error) func(net.PacketConn) error {
	return func(pc net.PacketConn) error {
		ours, ok := pc.(*stack.UDPConn)
		if !ok {
			return serve(pc)
		}
		c, err := slice.New(ours)
		if err != nil {
			return err
		}
		defer c.Close()
		return serve(c)
	}
}
