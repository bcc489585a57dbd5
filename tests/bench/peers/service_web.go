package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/valyala/fasthttp"
)

// secretly is each over TLS.
func secretly(c *tls.Config, serve func(net.Conn)) func(net.Listener) error {
	return func(ln net.Listener) error { return each(serve)(tls.NewListener(ln, c)) }
}

// secureWeb serves HTTP/1.1 and HTTP/2. It is a server of its own: one that serves without TLS as
// well may not configure HTTP/2. It adds to its TLS configuration.
func secureWeb(c *tls.Config) func(net.Listener) error {
	web := &http.Server{Handler: http.HandlerFunc(kilobyte), TLSConfig: c.Clone(),
		ErrorLog: quiet()}
	return func(ln net.Listener) error { return web.ServeTLS(ln, "", "") }
}

// quiet drops what a server says about clients that go away: loads end like that.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// fastServer answers as kilobyte does, without net/http.
func fastServer() *fasthttp.Server {
	return &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) {
		c.SetContentType(contentType[0])
		_, _ = c.Write(body)
	}}
}

// proxyServer passes requests on to the client's machine, by connections of the same stack.
func proxyServer(h host) *http.Server {
	behind := &url.URL{Scheme: "http", Host: at(clientPrefix, portBehind)}
	return &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) },
		Transport: &http.Transport{DialContext: h.Dial, MaxIdleConnsPerHost: webConns,
			DisableCompression: true},
		ErrorLog: quiet(),
	}}
}

// startBehind starts the server that the proxy asks. It ends with the process.
func startBehind(h host) error {
	ln, err := h.Listen(portBehind)
	if err != nil {
		return fmt.Errorf("listen on port %d: %w", portBehind, err)
	}
	go http.Serve(ln, http.HandlerFunc(kilobyte))
	return nil
}
