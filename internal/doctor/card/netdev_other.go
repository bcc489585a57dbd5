//go:build !linux

package card

import (
	"errors"
	"net"

	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// OpenNetdev works on Linux only.
func OpenNetdev(string) (wire.Wire, error) { return nil, errors.ErrUnsupported }

// UnicastList works on Linux only.
func UnicastList(string) ([]net.HardwareAddr, error) { return nil, errors.ErrUnsupported }

// Device works on Linux only.
func Device(cfg Config) (Config, func() error, error) { return cfg, nil, errors.ErrUnsupported }
