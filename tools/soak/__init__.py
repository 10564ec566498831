"""`make soak`: kills, full disks, untrusted files, memory, load and strange requests, again and again, bounded, with one table at the end."""
