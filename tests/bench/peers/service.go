package main

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
)

// Ports of the services.
const (
	portHTTP   = 80
	portDNS    = 53
	portSink   = 5001 // reads everything; at the end it reports the count
	portSource = 5002 // sends until the connection ends
	portEcho   = 5003 // TCP and UDP
	portPieces = 5005 // as portSource, in writes of the size that the client asks for, or a file
	portUDP    = 5004 // counts datagrams; a burst request makes it send some
	portFast   = 8000 // fasthttp
	portProxy  = 8001 // a reverse proxy; what is behind it is the client's
	portBehind = 8002 // of the client
	portGRPC   = 50051

	portSFU        = 5006 // forwards RTP, a call for each packet
	portSFUBatched = 5007 // in batches

	portHTTP3   = 443
	portBatched = 444  // HTTP/3 on a socket that quic-go reads and writes in batches
	portMany    = 6000 // UDP echo, on as many ports as there are sockets
	manySockets = 256

	overTLS = 1000 // added to a port: the same service over TLS 1.3, HTTP as HTTP/2, too
)

const (
	bulkBuffer = 256 << 10 // bytes per read or write of a bulk transfer
	sourceFile = 16 << 20  // bytes of a file that is sent
)

// services are the servers on one stack.
type services struct {
	host                              host
	received, datagrams, sent, failed atomic.Uint64
}

// counts is the counters of the services.
type counts struct {
	received, datagrams, sent, failed float64
	more                              metrics // of the host, if it counts
}

func (s *services) snapshot() counts {
	if s == nil {
		return counts{}
	}
	c := counts{float64(s.received.Load()), float64(s.datagrams.Load()), float64(s.sent.Load()),
		float64(s.failed.Load()), nil}
	if h, ok := s.host.(counting); ok {
		c.more = h.counters()
	}
	return c
}

// startServices starts all servers. They end with the process.
func startServices(h host, zone string) (*services, error) {
	s := &services{host: h}
	secret, err := serverTLS()
	if err != nil {
		return nil, err
	}
	dns, err := dnsd.New(dnsd.Config{ResponseRate: -1, Zones: []dnsd.Zone{{File: zone}}})
	if err != nil {
		return nil, err
	}
	web := &http.Server{Handler: http.HandlerFunc(kilobyte)}
	for port, serve := range map[int]func(net.Listener) error{
		portHTTP: web.Serve, portSink: each(s.sink),
		portSource: each(s.source), portEcho: each(s.echo), portPieces: each(s.pieces),
		portHTTP + overTLS:   secureWeb(secret),
		portSink + overTLS:   secretly(secret, s.sink),
		portSource + overTLS: secretly(secret, s.source),
		portFast:             fastServer().Serve, portProxy: proxyServer(h).Serve,
		portGRPC: grpcServer().Serve,
	} {
		ln, err := h.Listen(port)
		if err != nil {
			return nil, fmt.Errorf("listen on port %d: %w", port, err)
		}
		go serve(ln)
	}
	for port, serve := range s.packets(dns, secret) {
		conn, err := h.ListenUDP(port)
		if err != nil {
			return nil, fmt.Errorf("listen on UDP port %d: %w", port, err)
		}
		go serve(conn)
	}
	return s, nil
}

// packets are the services on UDP, by port.
func (s *services) packets(dns *dnsd.Server,
	secret *tls.Config) map[int]func(net.PacketConn) error {
	all := map[int]func(net.PacketConn) error{portDNS: dns.ServeUDP, portUDP: s.udp,
		portEcho: s.echoUDP(64 << 10), portHTTP3: http3Server(secret).Serve,
		portBatched: batched(http3Server(secret).Serve),
		portSFU:     s.sfu(singly), portSFUBatched: s.sfu(inBatches)}
	for i := range manySockets {
		all[portMany+i] = s.echoUDP(2 << 10)
	}
	return all
}

var body = make([]byte, 1024)

// kilobyte answers every request with 1 KiB.
func kilobyte(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h["Content-Type"], h["Content-Length"] = contentType, contentLength
	_, _ = w.Write(body)
}

var contentType, contentLength = []string{"application/octet-stream"}, []string{"1024"}

// each serves every connection in a goroutine of its own.
func each(serve func(net.Conn)) func(net.Listener) error {
	return func(ln net.Listener) error {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return err
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}
}

func (s *services) sink(conn net.Conn) {
	buf := make([]byte, bulkBuffer)
	total := uint64(0)
	for {
		n, err := conn.Read(buf)
		total += uint64(n)
		s.received.Add(uint64(n))
		if errors.Is(err, io.EOF) {
			_, _ = conn.Write(binary.BigEndian.AppendUint64(nil, total))
		}
		if err != nil {
			return
		}
	}
}

func (s *services) source(conn net.Conn) {
	buf := make([]byte, bulkBuffer)
	for {
		if _, err := conn.Write(buf); err != nil {
			return
		}
	}
}

// pieces sends until the connection ends: in writes of the size that the client asks for by 8
// bytes, or a file if that is 0.
func (s *services) pieces(conn net.Conn) {
	var asked [8]byte
	if _, err := io.ReadFull(conn, asked[:]); err != nil {
		return
	}
	if size := binary.BigEndian.Uint64(asked[:]); size > 0 {
		buf := make([]byte, min(size, sourceFile))
		for {
			if _, err := conn.Write(buf); err != nil {
				return
			}
		}
	}
	f, err := os.CreateTemp("", "perf")
	if err != nil {
		return
	}
	defer f.Close()
	if err := errors.Join(os.Remove(f.Name()), f.Truncate(sourceFile)); err != nil {
		return
	}
	for {
		_, err := f.Seek(0, io.SeekStart)
		if err == nil {
			_, err = io.Copy(conn, f)
		}
		if err != nil {
			return
		}
	}
}

func (s *services) echo(conn net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

// echoUDP sends back what it receives, up to that size.
func (s *services) echoUDP(size int) func(net.PacketConn) error {
	return func(conn net.PacketConn) error {
		buf := make([]byte, size)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return err
			}
			if _, err := conn.WriteTo(buf[:n], from); err != nil {
				s.failed.Add(1)
			}
		}
	}
}

// udpBurst is a datagram that requests datagrams of some size, for some milliseconds.
type udpBurst struct{ size, millis int }

const burstMark = 0xb5

func (b udpBurst) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{burstMark, burstMark},
		uint32(b.size)), uint32(b.millis))
}

// udp counts datagrams, and sends some on request.
func (s *services) udp(conn net.PacketConn) error {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if n == 10 && buf[0] == burstMark && buf[1] == burstMark {
			s.burst(conn, from, int(binary.BigEndian.Uint32(buf[2:])),
				int(binary.BigEndian.Uint32(buf[6:])))
			continue
		}
		s.datagrams.Add(1)
	}
}

func (s *services) burst(conn net.PacketConn, to net.Addr, size, millis int) {
	b := make([]byte, size)
	for end := time.Now().Add(time.Duration(millis) * time.Millisecond); time.Now().Before(end); {
		for range 64 {
			if _, err := conn.WriteTo(b, to); err != nil {
				s.failed.Add(1)
			} else {
				s.sent.Add(1)
			}
		}
	}
}
