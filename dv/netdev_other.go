//go:build !linux

package dv

import "errors"

// Elsewhere than on linux there are no RDMA devices; the software NIC works.

func interfaceByName(string) (iface, error)        { return iface{}, errors.ErrUnsupported }
func rdmaIndices() (map[string]uint32, error)      { return nil, errors.ErrUnsupported }
func rdmaNetdevs(uint32) (map[uint8]string, error) { return nil, errors.ErrUnsupported }
func rdmaDriver(uint32) (string, uint32, error)    { return "", 0, errors.ErrUnsupported }
