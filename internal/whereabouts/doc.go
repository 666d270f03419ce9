// Package whereabouts parses the configuration of the IPAM plugin whereabouts (v0.9.4,
// doc/extended-configuration.md) and returns the IPPools for it. Pure functions; no I/O.
//
// It accepts the configurations that whereabouts accepts. If Fairlead treats an option
// differently, Parse warns, and docs/user/whereabouts.md explains the reason.
package whereabouts
