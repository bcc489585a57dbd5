//go:build !linux

package quic

import "github.com/rdma-netstack/rdma-netstack/stack"

// optionSocket is empty where sockets have other options.
type optionSocket struct{}

func newOptionSocket(*stack.UDPConn) (*optionSocket, error) { return nil, nil }

func (*optionSocket) closeSocket() error { return nil }
