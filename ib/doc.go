// Package ib knows InfiniBand hosts: which devices and ports a host has, which
// network interface carries IP over them, and by which rule a host's name turns
// into the address that peers should connect to.
//
// It moves no data and opens no device. Everything is read from sysfs and from the
// kernel's address tables, both of which a Host value can replace.
package ib
