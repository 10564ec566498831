"""`make soak`: kills, full disks, untrusted files, memory, load and strange requests, bounded, with one table at the end."""
