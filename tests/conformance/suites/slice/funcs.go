package slice

import (
	"context"
	"net"
	"time"
)

// Dial is package net's.
func Dial(network, address string) (net.Conn, error) { return (&Dialer{}).Dial(network, address) }

// DialTimeout is package net's.
func DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	return (&Dialer{Timeout: timeout}).Dial(network, address)
}

// DialTCP is package net's.
func DialTCP(network string, laddr, raddr *net.TCPAddr) (*TCPConn, error) {
	return Default().DialTCP(network, laddr, raddr)
}

// DialUDP is package net's.
func DialUDP(network string, laddr, raddr *net.UDPAddr) (*UDPConn, error) {
	return Default().DialUDP(network, laddr, raddr)
}

// Listen is package net's.
func Listen(network, address string) (net.Listener, error) {
	return (&ListenConfig{}).Listen(context.Background(), network, address)
}

// ListenPacket is package net's.
func ListenPacket(network, address string) (net.PacketConn, error) {
	return (&ListenConfig{}).ListenPacket(context.Background(), network, address)
}

// ListenTCP is package net's.
func ListenTCP(network string, laddr *net.TCPAddr) (*TCPListener, error) {
	return Default().ListenTCP(network, laddr)
}

// ListenUDP is package net's.
func ListenUDP(network string, laddr *net.UDPAddr) (*UDPConn, error) {
	return Default().ListenUDP(network, laddr)
}
