//go:build !linux

package dv

import "errors"

// Elsewhere than on linux there are no RDMA devices; the software NIC works.

func interfaceByName(string) (iface, error) { return iface{}, errors.ErrUnsupported }

func networkOf(string) (Network, error) { return Network{}, errors.ErrUnsupported }

func vlanOn(string, int) (string, error) { return "", errors.ErrUnsupported }

func rdmaFactsOf(string) rdmaFacts { return rdmaFacts{} }

func pinnedBytes() uint64 { return 0 }
