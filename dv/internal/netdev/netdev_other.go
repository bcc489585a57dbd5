//go:build !linux

package netdev

import (
	"errors"
	"net"
)

// Elsewhere than on linux there are no RDMA devices; the software NIC works.

func ByName(string) (Interface, error) { return Interface{}, errors.ErrUnsupported }

func NetworkOf(string) (Network, error) { return Network{}, errors.ErrUnsupported }

func VLANOn(string, int) (string, error) { return "", errors.ErrUnsupported }

func RDMAFactsOf(string) RDMAFacts { return RDMAFacts{} }

func PinnedBytes() uint64 { return 0 }

type Watcher struct{}

func Watch(string, func(Interface)) (*Watcher, error) { return nil, errors.ErrUnsupported }

func (*Watcher) Close() error { return nil }

type Membership struct{}

func OpenMembership(string) (*Membership, error) { return nil, errors.ErrUnsupported }

func (*Membership) Add(net.HardwareAddr) error { return errors.ErrUnsupported }

func (*Membership) Remove(net.HardwareAddr) error { return errors.ErrUnsupported }

func (*Membership) Close() error { return nil }

func IsRepresentor(string, string) bool { return false }

func NetvscOf(string, string) string { return "" }
