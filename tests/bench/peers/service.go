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

	"golang.org/x/sys/unix"

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

// udpBurst represents a datagram that asks for datagrams of some size, so many in each call
// (UDP_SEGMENT, if there are several), for some milliseconds.
type udpBurst struct{ size, each, millis int }

const burstMark = 0xb5

func (b udpBurst) encode() []byte {
	text := []byte{burstMark, burstMark}
	for _, v := range []int{b.size, b.each, b.millis} {
		text = binary.BigEndian.AppendUint32(text, uint32(v))
	}
	return text
}

// udpBurstLen gives the length of an encoded udpBurst.
const udpBurstLen = 2 + 3*4

func decodeBurst(text []byte) (b udpBurst, ok bool) {
	if len(text) != udpBurstLen || text[0] != burstMark || text[1] != burstMark {
		return b, false
	}
	for i, v := range []*int{&b.size, &b.each, &b.millis} {
		*v = int(binary.BigEndian.Uint32(text[2+4*i:]))
	}
	return b, b.each > 0
}

// udp counts datagrams, and sends some on request.
func (s *services) udp(conn net.PacketConn) error {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if b, ok := decodeBurst(buf[:n]); ok {
			s.burst(conn, from, b)
			continue
		}
		s.datagrams.Add(1)
	}
}

func (s *services) burst(conn net.PacketConn, to net.Addr, b udpBurst) {
	data, oob := make([]byte, b.size*b.each), segmentControl(b.size)
	write := func() error {
		_, err := conn.WriteTo(data, to)
		return err
	}
	if b.each > 1 {
		c, can := conn.(interface {
			WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error)
		})
		write = func() error {
			if !can {
				return errors.ErrUnsupported
			}
			_, _, err := c.WriteMsgUDP(data, oob, to.(*net.UDPAddr))
			return err
		}
	}
	for end := time.Now().Add(time.Duration(b.millis) * time.Millisecond); time.Now().Before(end); {
		for range (63 + b.each) / b.each {
			if err := write(); err != nil {
				s.failed.Add(1)
			} else {
				s.sent.Add(uint64(b.each))
			}
		}
	}
}

// segmentControl returns the control message UDP_SEGMENT.
func segmentControl(size int) []byte {
	ne := binary.NativeEndian
	oob := ne.AppendUint64(nil, uint64(unix.CmsgLen(2)))
	oob = ne.AppendUint32(ne.AppendUint32(oob, unix.SOL_UDP), unix.UDP_SEGMENT)
	return append(ne.AppendUint16(oob, uint16(size)), make([]byte, unix.CmsgSpace(2)-18)...)
}
