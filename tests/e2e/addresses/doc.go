// Package addresses tests how the stack gets its addresses from a network: by DHCP, DHCPv6 and
// router advertisements of dnsmasq in a namespace, over the software NIC.
package addresses
