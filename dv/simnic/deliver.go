package simnic

// ConnectWire plugs the port into w and starts reception.
func (n *NIC) ConnectWire(w Wire) error { return n.wire.plug(w, n.fromWire) }

// ConnectNetdev plugs w in as the netdev side of the port: it gets the frames of
// the netdev's MAC, broadcast and multicast, and sends beside the user queues.
func (n *NIC) ConnectNetdev(w Wire) error { return n.netdev.plug(w, n.fromNetdev) }
