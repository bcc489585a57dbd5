package rig

import "github.com/rdma-netstack/rdma-netstack/dv"

// SliceReport is what the guest's bare slice (guest slice) prints as JSON: one line when it is open
// and one when it ends.
type SliceReport struct {
	Name, Netdev, MAC string
	Rx, Tx            int
	Caps              dv.Caps
	LinkUp            bool

	Echoed     uint64 // frames answered
	Astray     uint64 // frames on another queue than Device.QueueFor says
	Unverified uint64 // frames whose checksums the NIC did not verify
	// frames without a time stamp, or with one earlier than that of the frame before
	Unstamped uint64
	Tagged    uint64 // frames whose VLAN tag the NIC removed
	Groups    uint64 // broadcast and multicast frames received
	Features  []dv.Feature
	Stats     dv.Stats
	Err       string // why the device ended

	Posted, Waited string // errors of TxQueue.Post and RxQueue.Wait after that
}
